"""Calls on an engine that may or may not offer what is called; the set has checked that it does."""

from roll_rollout.adapter import AdapterUpdate
from roll_rollout.capabilities import (
    AdapterEngine,
    CheckedEngine,
    PausableEngine,
    PauseMode,
    PrefixCachingEngine,
    SleepingEngine,
)
from roll_rollout.engine import Engine
from roll_rollout.errors import EngineError, EngineUnavailable
from roll_rollout.weights import WeightReceipt


async def pause(engine: Engine, mode: PauseMode) -> None:
    """Lets an engine stand still. See `PausableEngine`."""
    if isinstance(engine, PausableEngine):
        await engine.pause(mode)


async def resume(engine: Engine) -> None:
    """Lets it go on."""
    if isinstance(engine, PausableEngine):
        await engine.resume()


async def sleep(engine: Engine, level: int) -> None:
    """Lets it free its memory. See `SleepingEngine`."""
    if isinstance(engine, SleepingEngine):
        await engine.sleep(level)


async def wake(engine: Engine) -> None:
    """Lets it take it back."""
    if isinstance(engine, SleepingEngine):
        await engine.wake()


async def forget_prompts(engine: Engine) -> None:
    """Lets it forget computed prompts. See `PrefixCachingEngine`."""
    if isinstance(engine, PrefixCachingEngine):
        await engine.reset_prefix_cache()


async def load_adapter(engine: Engine, update: AdapterUpdate) -> WeightReceipt:
    """Brings it a LoRA adapter. See `AdapterEngine`."""
    if not isinstance(engine, AdapterEngine):
        raise EngineError(f"adapter {update.name!r}: this engine takes none")
    return await engine.load_adapter(update)


async def unload_adapter(engine: Engine, name: str) -> None:
    """Lets it forget one."""
    if isinstance(engine, AdapterEngine):
        await engine.unload_adapter(name)


async def require_well(engine: Engine) -> None:
    """Returns if it is well; what it says otherwise is its death.

    Raises:
        EngineUnavailable: It is not; says what it said.
    """
    try:
        if isinstance(engine, CheckedEngine):
            await engine.check_health()
        else:
            await engine.load()
    except EngineError as error:
        raise EngineUnavailable(str(error)) from error
