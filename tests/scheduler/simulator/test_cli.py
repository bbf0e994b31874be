"""`roll-simulate`, its table, its JSON and its pictures."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from roll_scheduler.simulator import (
    POLICIES,
    TRACES,
    EngineModel,
    LognormalLengths,
    Setting,
    SimulationError,
    Trainer,
    Workload,
    bar_chart,
    gantt,
    json_report,
    queue,
    run_policy,
    simulate,
    table,
    tail_rounds,
)
from roll_scheduler.simulator.cli import main

SMALL = ["--replicas", "2", "--slots", "4", "--prompts", "4", "--group-size", "2", "--steps", "2"]


def test_all_policies_run_side_by_side(capsys, tmp_path):
    arguments = [
        *SMALL,
        "--policy",
        "all",
        "--json",
        str(tmp_path / "o.json"),
        "--svg",
        str(tmp_path / "o.svg"),
    ]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n| ") == 1 + len(POLICIES)
    assert "| static split * " in shown and "* re-creation" in shown
    written = json.loads((tmp_path / "o.json").read_text())["policies"]
    assert len(written) == len(POLICIES) and all(len(policy["steps"]) == 2 for policy in written)
    assert ElementTree.parse(tmp_path / "o.svg").getroot().tag.endswith("svg")


def test_the_output_depends_on_the_seed_alone(capsys):
    shown = []
    for seed in ("3", "3", "4"):
        assert main([*SMALL, "--policy", "core", "partial=2", "--seed", seed]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]


def test_lengths_of_a_real_run_take_the_place_of_a_trace(capsys, tmp_path):
    path = tmp_path / "rollouts.jsonl"
    rows = [{"step": 0, "group": g, "member": m, "tokens": 10 + g} for g in range(4) for m in range(2)]
    path.write_text("\n".join(map(json.dumps, rows)))
    fields = ["--train-share", "0", "--base-ms", "1000", "--sequence-us", "0"]
    assert main([*SMALL, "--lengths", str(path), *fields]) == 0
    assert "|   13.0 |" in capsys.readouterr().out


def test_latencies_failures_and_memory_can_be_set(capsys):
    extra = ["--reward-s", "1,0.5", "--environment-s", "2", "--turns", "2", "--failure", "0@3:9"]
    more = ["--kv-tokens", "20000", "--prompt-tokens", "100", "--prefill-us", "50", "--sync-s", "1"]
    assert main([*SMALL, *extra, *more, "--sample-s", "0.5", "--policy", "core", "core-async"]) == 0
    assert "core-async" in capsys.readouterr().out


def test_it_lists_policies_and_traces(capsys):
    assert main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in POLICIES) and "eta=1.25" in shown and "cap 16,384" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "qeue"], "policy: got 'qeue', allowed is one of core"),
        (["--policy", "queue=2"], "got the value 2.0, but it has no option"),
        (["--policy", "tail-rounds=x"], "got 'x', allowed is a number"),
        (["--policy", "core-async=1.5"], "got max_staleness=1.5, allowed is an integer"),
        (
            ["--policy", "core-async", "--trainer-devices", "2"],
            "got 2 trainer devices of 2, allowed is 1 to 1",
        ),
        (["--policy", "core-tail=1"], "policy core-tail: got eta=1.0, allowed is > 1"),
        (["--steps", "0"], "--steps: got 0, allowed is >= 1"),
        (["--replicas", "0"], "--replicas: got 0, allowed is >= 1"),
        (["--slots", "0"], "EngineModel.slots: got 0, allowed is >= 1"),
        (["--seed", "-1"], "--seed: got -1, allowed is >= 0"),
        (["--train-share", "1"], "--train-share: got 1.0, allowed is 0 to below 1"),
        (["--kv-tokens", "10"], "needs KV for"),
        (["--lengths", "/nowhere.jsonl"], "cannot read /nowhere.jsonl"),
        (["--json", "/nowhere/o.json"], "cannot write the report"),
    ],
)
def test_bad_input_is_answered_with_what_is_allowed(capsys, arguments, says):
    assert main([*SMALL, *arguments]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--trace", "E"], "invalid choice: 'E'"),
        (["--reward-s", "x"], "got 'x', allowed is MEAN or MEAN,STD"),
        (["--failure", "1"], "allowed is REPLICA@SECONDS"),
        (["--replics", "1"], "unrecognized arguments: --replics"),
    ],
)
def test_options_that_cannot_be_read_are_named(capsys, arguments, says):
    with pytest.raises(SystemExit):
        main([*SMALL, *arguments])
    assert says in capsys.readouterr().err


def test_the_table_gives_speed_ups_over_the_first_policy(table_setting):
    setting = table_setting([[1, 9], [1, 1]], workers=2)
    lines = table([queue(setting, steps=1), queue(setting, steps=1)]).splitlines()
    assert lines[3].split("|")[2].strip() == "1.00"
    assert "queue *" in lines[2]
    assert "* re-creation" not in table([simulate(setting, setting.policy(), steps=1)])


def test_the_report_is_plain_json(table_setting):
    setting = table_setting([[1, 9], [1, 1]], workers=2)
    report = json_report([queue(setting, steps=2)])
    assert json.loads(json.dumps(report)) == report
    assert report["policies"][0]["summary"]["step_s"] == 9.0


def test_pictures_show_what_was_kept_what_was_left_out_and_training(table_setting):
    rows = [[2, 4, 30], [3, 3, 3], [50, 60, 70], [1, 2, 3]]
    setting = table_setting(rows, workers=2, slots=3, groups=2, size=2)
    result = tail_rounds(setting, steps=2, eta=1.5, record_spans=True)
    chart, bars = ElementTree.fromstring(gantt(result)), ElementTree.fromstring(bar_chart([result]))
    titles = [item.text for item in chart.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(title.startswith("group") for title in titles) == len(result.spans)
    words = [item.text for item in bars.iter("{http://www.w3.org/2000/svg}text")]
    assert "tail rounds" in words


def test_an_unknown_policy_is_refused_by_the_python_api_too(table_setting):
    with pytest.raises(SimulationError, match="policy: got 'x'"):
        run_policy("x", table_setting([[1]]), steps=1, trainer_devices=1)


def test_the_scheduler_does_not_load_its_simulator():
    code = "import roll_scheduler, sys; print([m for m in sys.modules if 'simulator' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_changing_sides_costs_what_the_command_line_says(capsys, tmp_path):
    took = []
    for seconds in ("0", "7"):
        report = tmp_path / f"{seconds}.json"
        arguments = ["--policy", "core", "core-elastic", "rollpacker", "--switch-s", seconds]
        assert main([*SMALL, *arguments, "--json", str(report)]) == 0
        took.append([policy["total_s"] for policy in json.loads(report.read_text())["policies"]])
    assert took[1][0] == pytest.approx(took[0][0] + 2 * 2 * 7)
    assert all(slow > fast for fast, slow in zip(*took, strict=True))
    assert main([*SMALL, "--switch-s", "-1"]) == 2
    assert "Trainer.switch_s: got -1.0, allowed is >= 0" in capsys.readouterr().err
    assert main([*SMALL, "--policy", "core-elastic=2"]) == 2
    assert "got extra=2.0, allowed is 0 to 1" in capsys.readouterr().err


def test_the_gantt_shows_which_replicas_are_lent():
    setting = Setting(
        workload=Workload(LognormalLengths(TRACES["C"], seed=0)),
        engines=(EngineModel(slots=4, base_s=0.010, sequence_s=50e-6),) * 2,
        groups_per_batch=4,
        group_size=4,
        trainer=Trainer(sample_s=2.0),
    )
    result = run_policy("core-elastic", setting, steps=2, trainer_devices=1, record_spans=True)
    shown = gantt(result)
    assert shown.count("is lent") == len(result.lent) >= 4
    assert "training of step" not in shown
