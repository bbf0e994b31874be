"""What `roll-launch check` says of a stage in environments."""

from roll_launch.agentic_plan import AgenticPlan


def agentic_data_rows(plan: AgenticPlan) -> list[tuple[str, str]]:
    """Environments with their shares and starts, limits of an episode, and held-out starts."""
    stage = plan.stage
    total = sum(environment.weight for environment in stage.environments)
    rows = []
    for environment in stage.environments:
        starts = "a new start each time" if environment.starts is None else f"{environment.starts:,} starts"
        options = ", ".join(f"{name}={value!r}" for name, value in environment.options.items())
        named = f"{environment.name}({options})"
        tools = environment.tools
        if tools is not None:
            named += f" with {len(tools.offered)} kind(s) of tools"
        rows.append(
            (f"environment {environment.title}", f"{named}, {environment.weight / total:.0%}, {starts}")
        )
    episodes = stage.episodes
    limits = [f"{episodes.max_turns} turns of at most {plan.sampling.max_tokens:,} tokens"]
    if episodes.max_tokens is not None:
        limits.append(f"{episodes.max_tokens:,} tokens")
    if episodes.max_tool_calls is not None:
        limits.append(f"{episodes.max_tool_calls} tool calls")
    if episodes.seconds is not None:
        limits.append(f"{episodes.seconds:g} s")
    rows.append(("an episode", ", ".join(limits)))
    rows.append(
        ("training samples", f"by {episodes.samples}, {episodes.form} form, {episodes.history} history")
    )
    if plan.heldout is not None:
        rows.append(("held-out starts", f"{len(plan.heldout.prompts):,}"))
    return rows


def agentic_layout_row(plan: AgenticPlan, where: str) -> tuple[str, str]:
    """Environment workers, and how many episodes they hold."""
    workers = plan.stage.episodes.workers
    places = workers * sum(environment.concurrency for environment in plan.stage.environments)
    return "environment workers", f"{workers} {where}(s), up to {places:,} episodes at a time"
