"""The alarms of one stage: detectors see, episodes decide what is told, records stay for the summary."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from roll_learners.update import StepResult

from roll_launch.alarms.alarm import Alarm, AlarmRecord
from roll_launch.alarms.batch import AllMasked, EqualScores, ZeroAdvantages
from roll_launch.alarms.detector import Detector
from roll_launch.alarms.episode import Episode, Told
from roll_launch.alarms.length import LengthReward
from roll_launch.alarms.policy import EntropyCollapse, KlExplosion, RatioExplosion
from roll_launch.alarms.rates import FailureRateJump, ParseRateDrop
from roll_launch.alarms.skipped import SkippedUpdates
from roll_launch.config import PolicyAlarmsConfig, SupervisedAlarmsConfig

logger = logging.getLogger(__name__)


class AlarmScreen(Protocol):
    """Where people see alarms."""

    def alarm(self, alarm: Alarm) -> None:
        """Shows an alarm so that it stays."""
        ...

    def alarm_over(self, name: str, step: int) -> None:
        """Says that an alarm is over."""
        ...


@dataclass(slots=True, kw_only=True)
class _Watch:
    detector: Detector
    episode: Episode


class StageAlarms:
    """Watches the steps of one stage.

    Args:
        config: The stage's `alarms`; None for none.
        stage: Its name.
        screen: Where alarms are shown.
        records: By name, kept up to date.
    """

    def __init__(
        self,
        config: SupervisedAlarmsConfig | None,
        *,
        stage: str,
        screen: AlarmScreen,
        records: dict[str, AlarmRecord],
    ) -> None:
        self._stage = stage
        self._screen = screen
        self._records = records
        self._skipped: SkippedUpdates | None = None
        self._watches: list[_Watch] = []
        if config is None:
            return
        detectors: list[Detector] = []
        if config.skipped_update is not None:
            self._skipped = SkippedUpdates(config.skipped_update)
            detectors.append(self._skipped)
        if isinstance(config, PolicyAlarmsConfig):
            detectors += policy_detectors(config)
        quiet, repeat = config.quiet_steps, config.repeat_every
        self._watches = [
            _Watch(detector=each, episode=Episode(patience=each.steps, quiet=quiet, repeat=repeat))
            for each in detectors
        ]

    def observe(
        self, step: int, metrics: Mapping[str, float], trained: StepResult, name: Callable[[int], str]
    ) -> dict[str, float]:
        """Takes in a step, and tells what is to be told.

        Args:
            step: Of the stage, from 1 on.
            metrics: All of the step.
            trained: What the trainer returned.
            name: What to call the sample at a position of the step's batch.

        Returns:
            `alarm/NAME`: 1 for each alarm that this step shows.
        """
        if self._skipped is not None:
            self._skipped.take(step, trained, name)
        marks: dict[str, float] = {}
        for watch in self._watches:
            if self._look(watch, step, metrics):
                marks[f"alarm/{watch.detector.name}"] = 1.0
        return marks

    def refuse_standstill(self) -> None:
        """Ends a stage whose updates are all skipped; called after the step is booked.

        Raises:
            SkippedUpdatesError: For as many steps in a row as the configuration allows.
        """
        if self._skipped is not None:
            self._skipped.refuse_standstill()

    def state(self) -> dict[str, Any]:
        """What a resume needs, as JSON can hold it."""
        return {
            "watches": {
                watch.detector.name: {"memory": watch.detector.memory, "episode": watch.episode.state()}
                for watch in self._watches
            },
            "records": {name: asdict(record) for name, record in self._records.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from a `state`; alarms that it does not know begin anew."""
        kept = state.get("watches", {})
        for watch in self._watches:
            if watch.detector.name in kept:
                own = kept[watch.detector.name]
                watch.detector.memory = [list(step) for step in own["memory"]]
                watch.episode = watch.episode.restored(own["episode"])
        self._records.update(restored_records(state))

    def _look(self, watch: _Watch, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether the step shows the alarm."""
        detector, episode = watch.detector, watch.episode
        reading = detector.read(metrics)
        if reading is None:
            return False
        told = episode.see(step, fault=reading.fault)
        if told is Told.OVER:
            logger.info("%s step %d: alarm %s is over", self._stage, step, detector.name)
            self._screen.alarm_over(detector.name, step)
        if not (reading.fault and episode.on):
            return False
        record = self._records.get(detector.name)
        self._records[detector.name] = (
            AlarmRecord.begun(detector.name, self._stage, step, reading)
            if record is None
            else record.extended(step, reading)
        )
        if told in (Told.BEGINS, Told.LASTS):
            alarm = Alarm(
                name=detector.name,
                stage=self._stage,
                step=step,
                metric=reading.metric,
                value=reading.value,
                threshold=reading.threshold,
                message=f"{'still: ' if told is Told.LASTS else ''}{reading.said} ({reading.metric} "
                f"{reading.value:.4g}, limit {reading.threshold:.4g}). {detector.advice}",
            )
            logger.warning("%s step %d: alarm %s: %s", self._stage, step, alarm.name, alarm.message)
            self._screen.alarm(alarm)
        return True


def restored_records(state: Mapping[str, Any]) -> dict[str, AlarmRecord]:
    """The records of a `StageAlarms.state`, by name."""
    return {name: AlarmRecord(**values) for name, values in state.get("records", {}).items()}


def policy_detectors(config: PolicyAlarmsConfig) -> list[Detector]:
    """The detectors that a configuration switches on, besides that of skipped updates."""
    made: list[Detector | None] = [
        None if config.equal_scores is None else EqualScores(config.equal_scores),
        None if config.zero_advantages is None else ZeroAdvantages(config.zero_advantages),
        None if config.all_masked is None else AllMasked(config.all_masked),
        None if config.entropy_collapse is None else EntropyCollapse(config.entropy_collapse),
        None if config.kl_explosion is None else KlExplosion(config.kl_explosion),
        None if config.ratio_explosion is None else RatioExplosion(config.ratio_explosion),
        None if config.parse_rate_drop is None else ParseRateDrop(config.parse_rate_drop),
        None if config.failure_rate_jump is None else FailureRateJump(config.failure_rate_jump),
        None if config.length_reward is None else LengthReward(config.length_reward),
    ]
    return [detector for detector in made if detector is not None]
