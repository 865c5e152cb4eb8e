"""What `firesteel image inspect` learned from the files of images, laid over the catalog by their digests.

`learn --image` reads the flags of an engine (`InspectedImage`); an inspection reads which GPUs the libraries
have code for, the versions of packages, and known traps. Both may be there for one image.
"""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.catalog.image import Image, ImageProblem, Images, identify, tagged
from firesteel.launch import EngineName
from firesteel.values import Value, replace


class ImageInspection(Value):
    reference: str
    digests: tuple[str, ...]
    """Every `sha256:...` that identifies it."""
    on: str
    """The date, as 2026-11-15: a tag may have moved since."""
    engine: EngineName | None
    """None: no engine that firesteel knows is inside."""
    version: str | None
    entrypoint: tuple[str, ...] | None
    arch: str | None
    cuda: str | None
    sm: tuple[str, ...] | None
    """As `Image.sm`; None: the engine's libraries were not read."""
    problems: tuple[ImageProblem, ...] = ()


def with_inspections(images: Images, inspections: Iterable[ImageInspection]) -> Images:
    """The oldest first. An image is found by digest; by its name until that is inspected again."""
    for inspection in inspections:
        image = _image(inspection, images)
        if image is None:
            continue
        reference = tagged(inspection.reference)
        pinned = {digest: replace(image, floating=False) for digest in inspection.digests}
        named = {
            name: replace(image, name=name, reference=known.reference)
            for name, known in images.named.items()
            if known.reference
            and (known.reference == reference or known.reference.partition("@")[2] in pinned)
        }
        images = replace(
            images,
            named={**images.named, **named} if named else images.named,
            inspected={**images.inspected, reference: image},
            digests={**images.digests, **pinned},
        )
    return images


def _image(inspection: ImageInspection, images: Images) -> Image | None:
    digest = next((digest for digest in inspection.digests if digest in images.digests), None)
    base = images.digests[digest] if digest else identify(inspection.reference, images)
    engine = inspection.engine or (base.engine if base else None)
    if engine is None:
        return None
    base = base or Image(engine, None)
    return replace(
        base,
        engine=engine,
        version=inspection.version or base.version,
        reference=inspection.reference,
        entrypoint=base.entrypoint if inspection.entrypoint is None else inspection.entrypoint,
        arch=(inspection.arch,) if inspection.arch else base.arch,
        cuda=inspection.cuda or base.cuda,
        sm=base.sm if inspection.sm is None else inspection.sm,
        note=f"its files were inspected here on {inspection.on}" + (f"; {base.note}" if base.note else ""),
        problems=inspection.problems,
    )
