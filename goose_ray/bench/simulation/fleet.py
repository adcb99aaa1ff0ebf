"""Many simulated replicas, as arrays: requests that wait and run, recorded steps, cumulative counters, real reports.

A replica has one kind of traffic. It gives half of its time to prompts while it decodes, steps take what the cost model
says, and every decoding sequence draws one of the recorded steps in each. Knows neither routing nor the aggregator.
"""

import pickle
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from goose.calibration import AcceptanceTable
from goose.sources.registry import SOURCE_NAMES
from goose.tuning import TreeTuning
from goose.tuning_counts import TuningCounts
from goose_ray.bench.simulation.step_library import Outcomes, StepLibrary
from goose_ray.engine.stats import EngineStats
from goose_ray.telemetry.report import Incarnation, ReplicaReport

__all__ = ["Fleet", "Requests"]

# As the policy does: one step in so many is counted for tuning.
_COUNTED = 4


class Requests:
    """Those in the cluster, in order of arrival; arrays with one entry each."""

    def __init__(self) -> None:
        self.replica = np.empty(0, np.int64)
        self.arrived_s = np.empty(0)
        self.prompt_tokens, self.output_tokens = np.empty(0), np.empty(0)
        # what is yet to be computed
        self.prompt_left, self.output_left = np.empty(0), np.empty(0)
        self.is_started = np.empty(0, np.bool_)

    def __len__(self) -> int:
        return len(self.replica)

    def add(
        self,
        replica: NDArray[np.int64],
        arrived_s: NDArray[np.float64],
        prompt: NDArray[np.int64],
        out: NDArray[np.int64],
    ) -> None:
        new = (replica, arrived_s, prompt, out, prompt, out, np.zeros(len(replica), np.bool_))
        for name, values in zip(vars(self), new, strict=True):
            setattr(self, name, np.concatenate([getattr(self, name), values]))

    def keep(self, kept: NDArray[np.bool_]) -> None:
        for name, values in list(vars(self).items()):
            setattr(self, name, values[kept])

    def restart(self, which: NDArray[np.bool_], replica: NDArray[np.int64]) -> None:
        """On other replicas, from the beginning."""
        self.replica[which] = replica
        self.prompt_left[which], self.output_left[which] = self.prompt_tokens[which], self.output_tokens[which]


class Fleet:
    """`kinds[r]` is the traffic of replica r, by its place in `libraries`; `step_s[n]` are the seconds of a step of n
    rows.
    """

    def __init__(
        self,
        kinds: NDArray[np.int64],
        libraries: Sequence[StepLibrary],
        names: Sequence[str],
        *,
        budget: int,
        max_running: int,
        step_s: NDArray[np.float64],
        rng: np.random.Generator,
    ) -> None:
        size = len(kinds)
        self.kinds = kinds
        # the kind of steps that its requests draw
        self.traffic = kinds.copy()
        self._libraries, self._names = libraries, names
        self._budget, self._max_running, self._rng = budget, max_running, rng
        self._step_s = step_s
        self.max_rows = len(step_s) - 1
        self._prefill_s = step_s[-1] / self.max_rows
        self._steps_per_library = min(len(library) for library in libraries)
        self.requests = Requests()
        self.is_live = np.ones(size, np.bool_)
        # gets no more requests, and stops when it has none
        self.is_leaving = np.zeros(size, np.bool_)
        # a row each, cumulative over an incarnation: steps, rows, trees, tokens, answers, and seconds of the steps
        self._work = np.zeros((6, size))
        self.tunings = [TreeTuning()] * size
        self.reports_made = np.zeros(size, np.int64)
        self.incarnations = [Incarnation("", 0.0, "", "", 0)] * size
        self.tables = [AcceptanceTable()] * size
        self._counts = [TuningCounts.none()] * size
        self._started_s, self._carry = np.zeros(size), np.zeros(size)
        # [num_replicas, num_steps]: tokens that each recorded step commits there, how often it came since the last
        # report
        self._committed = np.zeros((size, self._steps_per_library))
        self._drawn = np.zeros((size, self._steps_per_library), np.int64)
        self._num_lives = 0
        # cumulative, of the whole fleet
        self.tokens, self.sequence_steps, self.finished = 0.0, 0, 0
        self.waits_s: list[NDArray[np.float64]] = []
        # from arrival to the last token, by the tokens of the answer
        self.seconds_a_token: list[NDArray[np.float64]] = []
        for replica in range(size):
            self.start(replica, 0.0)

    def start(self, replica: int, now: float) -> None:
        """A new incarnation, which has counted nothing and is not tuned."""
        self._num_lives += 1
        name = f"{replica:06d}-replica"
        self.incarnations[replica] = Incarnation(name, now, f"{self._num_lives:032x}", f"host-{replica // 8}", replica)
        self.tables[replica], self._counts[replica] = AcceptanceTable(SOURCE_NAMES), TuningCounts.none()
        self.reports_made[replica] = self._carry[replica] = 0
        self._drawn[replica] = 0
        self._work[:, replica] = 0
        self._started_s[replica] = now
        self.is_live[replica], self.is_leaving[replica] = True, False
        self.tune(replica, TreeTuning())

    def tune(self, replica: int, tuning: TreeTuning) -> None:
        """To be called between a report and the next step: what was drawn is counted under the tuning before."""
        self.tunings[replica] = tuning
        self._committed[replica] = self._outcomes(replica).committed[: self._steps_per_library]

    def switch_traffic(self, replicas: NDArray[np.int64], kind: int) -> None:
        """Their requests are of another kind from now on; reports must have been made just before."""
        self.traffic[replicas] = kind
        for replica in replicas.tolist():
            self.tune(replica, self.tunings[replica])

    def loads(self) -> NDArray[np.int64]:
        """Requests at each replica."""
        return np.bincount(self.requests.replica, minlength=len(self.kinds))

    def ranks(self) -> NDArray[np.int64]:
        """For each request, how many came to its replica before it."""
        return _ranks(self.requests.replica)

    def serve(self, now: float, seconds: float) -> None:
        """What happens from `now` on for so long."""
        requests = self.requests
        is_running = self.ranks() < self._max_running
        is_new = is_running & ~requests.is_started
        # who comes within the tick has not waited
        self.waits_s.append(np.maximum(0.0, now - requests.arrived_s[is_new]))
        requests.is_started |= is_new
        size = len(self.kinds)
        prefilling = np.flatnonzero(is_running & (requests.prompt_left > 0))
        decoding = np.flatnonzero(is_running & (requests.prompt_left <= 0))
        num_decoding = np.bincount(requests.replica[decoding], minlength=size)
        at = requests.replica[prefilling]
        wanted_s = self._prefill_s * np.bincount(at, weights=requests.prompt_left[prefilling], minlength=size)
        prefill_s = np.minimum(wanted_s, seconds * np.where(num_decoding > 0, 0.5, 1.0))
        share = prefill_s / (self._prefill_s * np.maximum(np.bincount(at, minlength=size), 1))
        requests.prompt_left[prefilling] -= share[at]

        rows = np.minimum(num_decoding * self._budget, self.max_rows)
        steps = self._carry + (seconds - prefill_s) / self._step_s[rows]
        self._carry = np.where(num_decoding > 0, steps % 1, 0.0)
        of_sequence = steps.astype(np.int64)[requests.replica[decoding]]
        owners = np.repeat(np.arange(len(decoding)), of_sequence)
        replicas = requests.replica[decoding][owners]
        drawn = self._rng.integers(self._steps_per_library, size=len(owners))
        tokens = self._committed[replicas, drawn]
        self._drawn += np.bincount(replicas * self._steps_per_library + drawn, minlength=self._drawn.size).reshape(
            self._drawn.shape
        )
        requests.output_left[decoding] -= np.bincount(owners, weights=tokens, minlength=len(decoding))
        self.tokens += float(tokens.sum())
        self.sequence_steps += len(owners)
        is_left = requests.output_left > 0
        # prompts are computed in whole batches, beside the steps of the trees
        prefill_rows = prefill_s / self._prefill_s
        done = np.where(num_decoding > 0, steps.astype(np.int64), 0)
        self._work += (
            done + prefill_rows / self.max_rows,
            done * rows + prefill_rows,
            done * num_decoding,
            np.bincount(replicas, weights=tokens, minlength=size),
            np.bincount(requests.replica[~is_left], minlength=size),
            done * self._step_s[rows] + prefill_s,
        )
        self.finished += int((~is_left).sum())
        lasted_s = now + seconds - requests.arrived_s[~is_left]
        self.seconds_a_token.append(lasted_s / requests.output_tokens[~is_left])
        requests.keep(is_left)
        self.is_live[self.is_leaving & (self.loads() == 0)] = False

    def stats(self, replica: int, running: int) -> EngineStats:
        """What its engine would say of its work, and of so many requests in the batch."""
        steps, rows, trees, tokens, finished, seconds = self._work[:, replica].tolist()
        return EngineStats(
            num_requests_running=running,
            generation_tokens=round(tokens),
            num_trees=round(trees),
            num_draft_tokens=round(trees * (self._budget - 1)),
            num_steps=round(steps),
            num_rows=round(rows),
            step_seconds=seconds,
            finished_by_reason={"length": round(finished)},
        )

    def report(self, replica: int, now: float) -> bytes:
        """Its next report as it travels."""
        outcomes, drawn = self._outcomes(replica), self._drawn[replica]
        self.tables[replica] = self.tables[replica].add(outcomes.table(drawn))
        counted = self._rng.binomial(drawn, 1 / _COUNTED)
        sums = np.tensordot(counted, outcomes.sums[: len(counted)], axes=1)
        self._counts[replica] += TuningCounts(sums, float(counted.sum()))
        self._drawn[replica] = 0
        self.reports_made[replica] += 1
        attempted = self.tables[replica].attempted_per_position()
        return pickle.dumps(
            ReplicaReport(
                incarnation=self.incarnations[replica],
                sequence=int(self.reports_made[replica]),
                model="model",
                max_model_len=131072,
                healthy=True,
                acceptance=self.tables[replica],
                stats=EngineStats(num_drafts=int(attempted[0])),
                workload=self._names[self.kinds[replica]],
                uptime_s=now - float(self._started_s[replica]),
                tuning_counts=self._counts[replica],
                tuning=self.tunings[replica],
            ),
            pickle.HIGHEST_PROTOCOL,
        )

    def _outcomes(self, replica: int) -> Outcomes:
        return self._libraries[int(self.traffic[replica])].outcomes(self.tunings[replica])


def _ranks(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many earlier entries have the same number."""
    order = np.argsort(groups, kind="stable")
    ordered, places = groups[order], np.arange(len(groups))
    starts = np.maximum.accumulate(np.where(np.diff(ordered, prepend=-1) != 0, places, 0))
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = places - starts
    return ranks
