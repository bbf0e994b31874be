"""What environments on a grid tell besides the board. Used by FrozenLake and Sokoban."""

from collections.abc import Iterable

from roll_agentic.pictures.grid import grid_png


def grid_info(
    board: str, *, instructions: str, actions: Iterable[str], is_valid: bool, pictures: bool, **more: object
) -> dict[str, object]:
    """The info of a reset or step; see `Environment.reset` for what its keys mean.

    Args:
        board: Lines of equal length; names the state.
        instructions: The rules.
        actions: All valid ones.
        is_valid: Whether the last one was.
        pictures: Whether there is a picture.
        **more: Of one environment alone.
    """
    info: dict[str, object] = {
        "instructions": instructions,
        "actions": list(actions),
        "action_is_valid": is_valid,
        "state": board,
        **more,
    }
    if pictures:
        info["image"] = grid_png(board.split("\n"))
    return info
