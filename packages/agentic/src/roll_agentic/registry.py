"""Environments by name, made from checked configuration. Called by whoever starts episodes."""

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from roll_agentic.adapters import (
    GemEnvironment,
    GymnasiumText,
    ReasoningGym,
    RockEnvironment,
    TextArena,
    WebShop,
)
from roll_agentic.environment import Environment
from roll_agentic.environments import (
    Countdown,
    FrozenLake,
    Maths,
    NumberGuessing,
    Sokoban,
    Terminal,
    maths_with_python,
    retrieval_qa,
    solo_tic_tac_toe,
)
from roll_agentic.errors import AgenticError

ENTRY_POINT_GROUP = "roll_agentic.environments"

ENVIRONMENTS: Mapping[str, Callable[..., Environment]] = MappingProxyType(
    {
        "countdown": Countdown,
        "frozen_lake": FrozenLake,
        "maths": Maths,
        "maths_with_python": maths_with_python,
        "number_guessing": NumberGuessing,
        "retrieval_qa": retrieval_qa,
        "sokoban": Sokoban,
        "terminal": Terminal,
        "tic_tac_toe": solo_tic_tac_toe,
        "webshop": WebShop,
    }
)

ADAPTERS: Mapping[str, Callable[..., Environment]] = MappingProxyType(
    {
        "gem": GemEnvironment,
        "gymnasium": GymnasiumText,
        "reasoning_gym": ReasoningGym,
        "rock": RockEnvironment,
        "textarena": TextArena,
    }
)


def make(name: str, **config: object) -> Environment:
    """A new environment.

    Args:
        name: A name in `ENVIRONMENTS`; the name of an adapter and an id of its library, such as
            `gem/game:GuessTheNumber-v0-easy` or `reasoning_gym/leg_counting`; a name that an installed
            package declares in the entry point group `roll_agentic.environments`; or an import path
            `module:factory`.
        **config: Keyword arguments of the environment's class or factory.

    Raises:
        AgenticError: No such environment (names the nearest and all there are) or option, a required
            option is missing, the factory fails, or what it makes has no `reset` and `step`.
    """
    factory = _factory(name)
    _check_config(name, factory, config)
    try:
        environment = factory(**config)
    except AgenticError:
        raise
    except Exception as error:
        # Boundary to foreign code: a third party's factory may raise anything.
        raise AgenticError(f"environment {name!r} cannot be made: {type(error).__name__}: {error}") from error
    for method in ("reset", "step"):
        if not callable(getattr(environment, method, None)):
            kind = type(environment).__name__
            raise AgenticError(f"environment {name!r} made a {kind}, which has no method {method!r}")
    return environment


def check_options(name: str, options: Mapping[str, object], *, supplied: Collection[str] = ()) -> None:
    """Compare a name and options with what there is, without making anything and without importing a module
    that is named by path, of which nothing is said.

    Args:
        name: As `make` takes it.
        options: As `make` takes them.
        supplied: Options that somebody else will add.

    Raises:
        AgenticError: As `make` does for names and options.
    """
    if _is_path(name) and name not in environment_names():
        return
    _check_config(name, _factory(name), {**dict.fromkeys(supplied), **options}, strict=options.keys())


def option_names(name: str) -> tuple[str, ...]:
    """The options of an environment by name, sorted; none where its factory does not say.

    Args:
        name: As `make` takes it; a module that is named by path is imported.

    Raises:
        AgenticError: No such environment.
    """
    try:
        parameters = inspect.signature(_factory(name)).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(sorted(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)))


def environment_names() -> list[str]:
    """The names that `make` knows, sorted: this package's and those of installed packages."""
    return sorted({*ENVIRONMENTS, *_declared()})


def _factory(name: str) -> Callable[..., Environment]:
    """The callable that makes the named environment.

    Raises:
        AgenticError: The name is unknown, claimed twice, or cannot be imported.
    """
    declared = _declared()
    adapter, slash, env_id = name.partition("/")
    if slash and adapter in ADAPTERS and env_id:
        return functools.partial(ADAPTERS[adapter], env_id)
    claims = [f"{point.value} (an installed package)" for point in declared.get(name, [])]
    if name in ENVIRONMENTS:
        claims.append("roll_agentic")
    if len(claims) > 1:
        raise AgenticError(f"environment {name!r} is claimed by {' and by '.join(claims)}; uninstall one")
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]
    if claims:
        path = declared[name][0].value
    elif _is_path(name):
        path = name
    else:
        names = environment_names()
        raise AgenticError(
            f"there is no environment {name!r}{_nearest(name, names)}; "
            f"there are {', '.join(names)}, "
            f"ids behind {', '.join(f'{adapter}/' for adapter in ADAPTERS)}, "
            f"those of packages with entry points in {ENTRY_POINT_GROUP!r}, and any 'module:factory'"
        )
    return _imported(path)


def _is_path(name: str) -> bool:
    """Whether it has the form `module:factory`."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name) is not None


def _declared() -> dict[str, list[EntryPoint]]:
    """Entry points of installed packages by environment name; the same value twice counts once."""
    declared: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        known = declared.setdefault(point.name, [])
        if point.value not in [other.value for other in known]:
            known.append(point)
    return declared


def _imported(path: str) -> Callable[..., Environment]:
    module, _, attributes = path.partition(":")
    try:
        found: object = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except Exception as error:
        # Boundary to foreign code: importing a module may raise anything.
        raise AgenticError(f"cannot import environment {path!r}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise AgenticError(f"environment {path!r} is a {type(found).__name__}, which cannot be called")
    return found


def _check_config(
    name: str,
    factory: Callable[..., object],
    config: Mapping[str, object],
    *,
    strict: Collection[str] | None = None,
) -> None:
    """Compare the options with the factory's signature, where it has one; those that are not `strict` may be
    unknown to it.

    Raises:
        AgenticError: An option is unknown or a required one is missing.
    """
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    allowed = sorted(p.name for p in named)
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for option in config if strict is None else strict:
            if option not in allowed:
                raise AgenticError(
                    f"environment {name!r} has no option {option!r}{_nearest(option, allowed)}; "
                    f"it has {', '.join(allowed) or 'none'}"
                )
    missing = [p.name for p in named if p.default is p.empty and p.name not in config]
    if missing:
        raise AgenticError(f"environment {name!r} needs the options {', '.join(missing)}")


def _nearest(name: str, allowed: Iterable[str]) -> str:
    near = get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
