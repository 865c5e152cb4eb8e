"""A verdict praises only repeated measurements, judged by the same kind of machine."""

from __future__ import annotations

from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.measurements import BenchRun, PointFigures
from firesteel.bench.report.verdict import verdict
from firesteel.values import replace
from tests.bench.example_run import example_run


def _alone(n: int, *, gpus: list[str] | None = None, share: float = 0.7) -> BenchRun:
    run = example_run().run
    found: PointFigures = replace(
        run.figures[0], decode_tokens_per_s=mean_interval([51.0 + 0.1 * at for at in range(n)]),
        bandwidth_share=share, prefill_tokens_per_s=None, ttft_mean_ms=None,
    )  # fmt: skip
    host = {**run.subject.host, "gpus": run.subject.host["gpus"] if gpus is None else gpus}
    subject = replace(run.subject, host=host)
    return replace(run, subject=subject, points=run.points[:1], figures=(found,))


def _lines(run: BenchRun, word: str) -> list[tuple[str, str]]:
    return [(line.kind, line.text) for line in verdict(run) if word in line.text]


def test_the_usual_share_of_a_gb10_does_not_apply_to_a_cpu() -> None:
    ((kind, text),) = _lines(_alone(5, gpus=[]), "bandwidth bound")
    assert kind == "fact" and "usual" not in text
    ((kind, text),) = _lines(_alone(5, gpus=[], share=0.3), "bandwidth bound")
    assert kind == "fact" and "not a sign of a fault" in text
    ((kind, text),) = _lines(_alone(5), "bandwidth bound")
    assert kind == "good" and "as is usual on a GB10" in text


def test_a_single_measurement_is_not_praised() -> None:
    assert not [line for line in verdict(_alone(1)) if line.kind == "good"]
    ((kind, text),) = _lines(_alone(1), "inside its plan's band")
    assert kind == "fact" and "measured only once" in text
    ((kind, text),) = _lines(_alone(1), "bandwidth bound")
    assert kind == "fact" and "measured only once" in text
    assert [line for line in verdict(_alone(4)) if line.kind == "good"]
