"""An episode as one HTML page that plays itself: no server, no files beside it."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

from roll_agentic.environment import Environment
from roll_agentic.episode import Episode
from roll_agentic.session import EnvironmentSession

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE@</title><style>
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1d2430}
pre{background:#f2f4f7;padding:1rem;border-radius:.5rem;white-space:pre-wrap;overflow-wrap:anywhere}
img{image-rendering:pixelated;min-width:12rem;border-radius:.25rem}
button{font:inherit;padding:.25rem .8rem}.said{border-left:4px solid #2166ce}.bar{display:flex;gap:.5rem;
align-items:center;flex-wrap:wrap}input{flex:1}
</style></head><body><h1>@TITLE@</h1><p>@SUMMARY@</p>
<div class="bar"><button id="play">Pause</button><input id="at" type="range" min="0" value="0"
aria-label="step"><span id="where"></span></div>
<div id="picture"></div><p>The environment:</p><pre id="seen"></pre>
<p>The policy:</p><pre id="said" class="said"></pre>
<script>
const steps=@STEPS@;
const byId=name=>document.getElementById(name);
let at=0,timer=null;
byId("at").max=steps.length-1;
function show(index){at=index;const step=steps[at];byId("at").value=at;
byId("where").textContent="step "+at+" of "+(steps.length-1)+", reward so far "+step.total;
byId("seen").textContent=step.seen;byId("said").textContent=step.said===null?"(end)":step.said;
byId("picture").innerHTML="";
if(step.image){const picture=new Image();picture.alt="state";picture.src="data:image/png;base64,"+step.image;
byId("picture").append(picture);}}
function play(on){clearInterval(timer);timer=on?setInterval(()=>show((at+1)%steps.length),900):null;
byId("play").textContent=on?"Pause":"Play";}
byId("play").onclick=()=>play(timer===null);
byId("at").oninput=event=>{play(false);show(Number(event.target.value));};
show(0);play(true);
</script></body></html>
"""


async def picture_frames(
    environment: Environment, episode: Episode, *, deadline_s: float = 60.0
) -> list[bytes | None]:
    """Pictures of the states of an episode, by playing its actions again.

    Args:
        environment: Of the same configuration, with pictures turned on.
        episode: What is played again.
        deadline_s: Seconds for each call, above 0.

    Returns:
        `info["image"]` after the reset and after each turn that was carried out; None where there is none.

    Raises:
        EnvironmentFault: The environment broke.
    """
    session = EnvironmentSession(environment, deadline_s=deadline_s)
    try:
        _, info = await session.reset(seed=episode.seed)
        frames = [_image(info.get("image"))]
        carried_out = sum(message.role == "environment" for message in episode.messages) - 1
        for turn in episode.turns[:carried_out]:
            frames.append(_image((await session.step(turn.response)).info.get("image")))
    finally:
        session.close()
    return frames


def replay_html(
    episode: Episode,
    *,
    title: str = "Episode",
    frames: Sequence[bytes | None] = (),
    path: Path | None = None,
) -> str:
    """A page that plays an episode: each observation with its picture, and what the policy said to it.

    Args:
        episode: What happened.
        title: Heading of the page.
        frames: PNG pictures of the states, one for each observation; fewer are fine.
        path: A file to write the page to; None for none.
    """
    steps: list[dict[str, object]] = []
    total, turn = 0.0, 0
    for message in episode.messages:
        if message.role == "policy":
            steps[-1]["said"] = message.text
            total += float(episode.rewards[turn])
            turn += 1
            continue
        frame = frames[len(steps)] if len(steps) < len(frames) else None
        picture = base64.b64encode(frame).decode() if frame else None
        steps.append({"seen": message.text, "said": None, "total": round(total, 6), "image": picture})
    summary = f"Seed {episode.seed}, {len(episode.turns)} turns, ended as {episode.status}"
    summary += f", reward {episode.total_reward:g}."
    if episode.failure is not None:
        summary += f" {episode.failure.kind}: {episode.failure.message}"
    data = json.dumps(steps or [{"seen": "", "said": None, "total": 0, "image": None}])
    # "<" must not close the script element from inside a text.
    page = _PAGE.replace("@TITLE@", html.escape(title)).replace("@SUMMARY@", html.escape(summary))
    page = page.replace("@STEPS@", data.replace("<", "\\u003c"))
    if path is not None:
        path.write_text(page, encoding="utf-8", errors="replace")
    return page


def _image(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None
