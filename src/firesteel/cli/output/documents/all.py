"""Every document that `--json` can print, for the schemas in `docs/schemas` and for tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from firesteel.bench import documents as bench
from firesteel.cli.output.documents import (
    client,
    cluster,
    diagnose,
    engine,
    error,
    key,
    learn,
    overview,
    ps,
    recipe,
    render,
    serve,
    top,
    usage,
)
from firesteel.facts.documents import Document
from firesteel.hosts import documents as hosts
from firesteel.images import documents as images
from firesteel.proposals import documents as proposals
from firesteel.rules import documents as rules
from firesteel.run import documents as run
from firesteel.upgrade import documents as upgrade
from firesteel.workshop.audit import documents as audit
from firesteel.workshop.quantize import documents as quantize
from firesteel.workshop.repair import documents as repair

DOCUMENTS: tuple[type[Document], ...] = (
    overview.OverviewJson,
    proposals.ModelsJson, proposals.ChooseJson, proposals.ChooseGuidesJson,
    proposals.PlanJson, proposals.PlanCompareJson,
    rules.CheckJson, rules.RuleJson, rules.FactsJson, rules.FactTableJson,
    hosts.DoctorJson, hosts.DoctorBundleJson, hosts.DoctorFixJson, hosts.DoctorUndoJson,
    hosts.DoctorMeasureJson, hosts.DoctorClusterJson,
    audit.AuditJson, repair.RepairJson, repair.RepairUndoJson,
    run.UpJson, run.UpFileJson, run.UpDryRunJson, run.VerifyJson,
    ps.PsJson, run.LogsJson, diagnose.DiagnosisJson, run.DownJson,
    bench.BenchJson, bench.BenchShapesJson,
    bench.CompareJson, bench.CompareQualityJson, bench.ComparePlanJson, bench.ComparePublishedJson,
    bench.TuneJson, bench.TuneDryRunJson,
    bench.HistoryJson, bench.HistoryImportJson, bench.HistoryDeleteJson,
    serve.ServeJson, top.TopJson, run.PullJson, run.PullPruneJson,
    quantize.QuantizeJson, quantize.QuantizePlanJson, quantize.QuantizeGgufJson,
    quantize.QuantizeCalibrateJson, render.RenderJson,
    recipe.RecipeNewJson, recipe.RecipeTestJson, recipe.RecipeShareJson, recipe.RecipeListJson,
    recipe.RecipeAdoptJson,
    key.KeyAddJson, key.KeyListJson, key.KeyRevokeJson, usage.UsageJson,
    client.ClientJson,
    cluster.ClusterAddJson, cluster.ClusterListJson, cluster.ClusterCheckJson,
    cluster.ClusterStageJson, cluster.ClusterRemoveJson,
    engine.EngineListJson, images.ImageInspectJson, images.ImageCompareJson,
    images.ImageBuildJson, images.ImagePruneJson, images.ImageWatchJson, upgrade.UpgradeJson,
    learn.LearnJson, learn.LearnImageJson, learn.LearnListJson, learn.LearnRecipesJson,
    error.ErrorJson,
)  # fmt: skip
"""In the order of `firesteel --help`."""


def id_of(document: type[Document]) -> str:
    """`firesteel.plan/1`"""
    return str(document.model_fields["document"].default)


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """By id: the JSON Schema of what is printed."""
    return {id_of(document): document.model_json_schema(mode="serialization") for document in DOCUMENTS}
