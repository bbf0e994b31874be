"""Grader `routed`: each row goes to the grader of its domain or tag."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from roll_rewards.errors import RewardError
from roll_rewards.grader import Grader
from roll_rewards.graders.nesting import GraderOption, nested_grader
from roll_rewards.scores import Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """What the grader of the row's route says; its value is a metric of the route's name as well.

    Example: `Routed(by="domain", routes={"math": {"name": "math"}, "qa": {"name": "text_match"}})`.

    Attributes:
        by: Column that names the route: a text, or a list of tags of which the first with a route counts.
        routes: Grader by route; at least one.
        default: Grader of rows without a route; None makes such a row an error.

    Raises:
        RewardError: There is no route or one cannot be made; when grading, the row has no route.
    """

    by: str = "domain"
    routes: Mapping[str, Grader | Mapping[str, object]]
    default: Grader | Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if not self.routes:
            raise RewardError("option 'routes' of grader 'routed' must name at least one route, got none")
        made = {
            route: nested_grader(option, where=f"route {route!r} of grader 'routed'")
            for route, option in self.routes.items()
        }
        object.__setattr__(self, "routes", made)
        if self.default is not None:
            object.__setattr__(
                self, "default", nested_grader(self.default, where="option 'default' of grader 'routed'")
            )

    async def grade(self, response: str, reference: object, **columns: object) -> Score:
        """The verdict of the row's grader. See `Grader.grade`."""
        route, grader = self._route(columns.get(self.by))
        score = await nested_grader(grader, where="routed").grade(response, reference, **columns)
        if score.failure is not None:
            return score
        return replace(score, parts={**score.parts, route: score.value})

    def _route(self, tags: object) -> tuple[str, GraderOption]:
        names = [tags] if isinstance(tags, str) else tags if isinstance(tags, list | tuple) else []
        for name in names:
            if name in self.routes:
                return str(name), self.routes[name]
        if self.default is not None:
            return "default", self.default
        raise RewardError(
            f"grader 'routed' has no route for {self.by}={tags!r:.80}, only for {', '.join(self.routes)}"
        )
