"""What goes with an image: where it came from (in-toto, SLSA), what is in it (CycloneDX), its catalog entry.

Pure. The SBOM is made from what `inspect` read: syft and its like come by no package name.
"""

from __future__ import annotations

import json
from typing import Any

from firesteel import __version__
from firesteel.catalog.image_recipe import ImageRecipe
from firesteel.images.built import ProvedImage
from firesteel.images.report import ImageReport
from firesteel.values import plain

_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"


def provenance(name: str, recipe: ImageRecipe, tag: str, report: ImageReport, proved: ProvedImage) -> str:
    """JSON. The packages inside stand under `byproducts`, each with the path that shows it."""
    bases = {stage.base: stage.digest or proved.digests.get(stage.base) for stage in recipe.stages}
    dependencies: list[dict[str, Any]] = [
        {"uri": pin.url, "name": pin.name, "digest": {"gitCommit" if pin.commit else "sha256": pin.pin}}
        for pin in recipe.pins
    ]
    dependencies += [
        {"uri": f"docker:{base}", "digest": {"sha256": digest.removeprefix("sha256:")}}
        for base, digest in bases.items()
        if digest
    ]
    statement = {
        "_type": _STATEMENT,
        "subject": [{"name": tag, "digest": {"sha256": report.digests[-1].removeprefix("sha256:")}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": "https://docs.docker.com/build/buildkit/",
                "externalParameters": {"recipe": name, "contents": plain(recipe)},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": f"firesteel/{__version__}"},
                "metadata": {"startedOn": proved.started},
                "byproducts": [
                    {"name": "components", "annotations": [plain(found) for found in report.components]},
                    {"name": "verification", "annotations": list(proved.checks)},
                    {
                        "name": "matrix products",
                        "annotations": [plain(product) for product in proved.products],
                    },
                ],
            },
        },
    }
    return json.dumps(statement, indent=1, default=str) + "\n"


def sbom(tag: str, report: ImageReport) -> str:
    """CycloneDX 1.6, JSON: every package that `inspect` found, with the path that shows it."""
    digest = report.digests[-1].removeprefix("sha256:")
    components = [
        {
            "type": "library",
            "name": found.name,
            "version": found.version,
            "evidence": {"occurrences": [{"location": found.how}]},
        }
        for found in report.packages
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "firesteel", "version": __version__}]},
            "component": {
                "type": "container",
                "name": tag.partition(":")[0],
                "version": tag.partition(":")[2],
                "hashes": [{"alg": "SHA-256", "content": digest}],
            },
        },
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def catalog_entry(name: str, recipe: ImageRecipe, tag: str, report: ImageReport) -> str:
    """An `images.yaml` with the image under its recipe's name, for recipes of models to use."""
    arch = json.dumps([report.architecture] if report.architecture else [])
    return (
        "# Written by `firesteel image build`; the next build of the recipe replaces it.\n"
        "images:\n"
        f"  {name}:\n"
        f"    reference: {tag}\n"
        f"    engine: {recipe.engine}\n"
        f'    version: "{recipe.version}"\n'
        f"    entrypoint: {json.dumps(list(recipe.entrypoint))}\n"
        f"    arch: {arch}\n"
        f"    gpu: {'true' if recipe.gpu else 'false'}\n"
        f"    note: built and verified here on {report.on}, image {report.digests[-1]}\n"
    )
