"""A study of recordings as a folder: `report.md` with its plots as PNG, and the same figures in `report.json`."""

import json
from pathlib import Path

from matplotlib.figure import Figure

from goose_ray.bench.replay.plots import (
    plot_acceptance,
    plot_macro_tau,
    plot_reliability,
    plot_shape,
    plot_tau_by_benchmark,
)
from goose_ray.bench.replay.study import Study
from goose_ray.bench.replay.study_json import study_json
from goose_ray.bench.replay.tables import (
    acceptance_table,
    benchmark_table,
    comparison_table,
    introduction,
    macro_table,
    reliability_table,
    session_table,
    shape_table,
)
from goose_ray.bench.replay.tree_plots import plot_trees

__all__ = ["write_report"]

_DPI = 110


def write_report(study: Study, folder: Path) -> None:
    """Writes into `folder`, made if need be; files of an earlier report are overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    text = [introduction(study), *_taus(study, folder), *_trees(study, folder), *_reliability(study, folder)]
    (folder / "report.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(study_json(study), indent=2) + "\n", encoding="utf-8")


def _taus(study: Study, folder: Path) -> list[str]:
    text = ["## Tau at equal verified nodes", _image(folder, "macro_tau", plot_macro_tau(study))]
    for wanted in study.wanted:
        text += [f"### {wanted:g} nodes", macro_table(study, wanted)]
        if study.comparisons:
            text.append(comparison_table(study, wanted))
        text += [benchmark_table(study, wanted)]
        text.append(_image(folder, f"tau_{wanted:g}", plot_tau_by_benchmark(study, wanted)))
        if study.plan.sessions:
            text.append(session_table(study, wanted))
    return text


def _trees(study: Study, folder: Path) -> list[str]:
    text = ["## Where accepted tokens come from"]
    for wanted in study.wanted:
        text += [f"### Sources at {wanted:g} nodes", acceptance_table(study, wanted)]
        text.append(_image(folder, f"acceptance_{wanted:g}", plot_acceptance(study, wanted)))
        text += [f"### Spine and branches at {wanted:g} nodes", shape_table(study, wanted)]
        text.append(_image(folder, f"shape_{wanted:g}", plot_shape(study, wanted)))
    wanted = min(study.wanted)
    drawn = [one for one in study.at(wanted) if one.statistics.trees]
    if drawn:
        text.append(f"### Trees at {wanted:g} nodes\n\nThree steps of each policy, drawn at random.")
        text += [_image(folder, f"trees_{one.policy}", plot_trees(one.policy, one.statistics.trees)) for one in drawn]
    return text


def _reliability(study: Study, folder: Path) -> list[str]:
    text = []
    for wanted in study.wanted:
        own = [one for one in study.at(wanted) if one.statistics.reliability() is not None]
        if own:
            text += [f"### {wanted:g} nodes", reliability_table(own)]
            text.append(_image(folder, f"reliability_{wanted:g}", plot_reliability(own)))
    return ["## Reliability of the probabilities", *text] if text else []


def _image(folder: Path, name: str, figure: Figure) -> str:
    figure.savefig(folder / f"{name}.png", dpi=_DPI)
    return f"![{name}]({name}.png)"
