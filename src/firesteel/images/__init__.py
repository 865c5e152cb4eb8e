"""Images: look first (`inspect`), build only what is missing (`build`), never tag what was not proved.

`open_image` opens a folder, an archive, an image or container of docker, or a registry's; `inspect_image`
reads its files once, as streams; `judge_recipes` holds it against the catalog, `compare_reports` against
another one. `build_image` builds a recipe, proves the image and tags it.
An inspection never unpacks an image, follows a link in it, runs what is inside, or pulls.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.images.build import build_image
    from firesteel.images.built import BuiltImage
    from firesteel.images.compare import ImageComparison, compare_reports
    from firesteel.images.inspect import RecipeVerdict, inspect_image, judge_recipes, save_inspection
    from firesteel.images.layers import DamagedImage
    from firesteel.images.report import ImageReport
    from firesteel.images.sources import OpenedImage, open_image

__all__ = [
    "BuiltImage", "DamagedImage", "ImageComparison", "ImageReport", "OpenedImage", "RecipeVerdict",
    "build_image", "compare_reports", "inspect_image", "judge_recipes", "open_image", "save_inspection",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(
        __name__,
        {
            "build": ("build_image",),
            "built": ("BuiltImage",),
            "compare": ("ImageComparison", "compare_reports"),
            "inspect": ("RecipeVerdict", "inspect_image", "judge_recipes", "save_inspection"),
            "layers": ("DamagedImage",),
            "report": ("ImageReport",),
            "sources": ("OpenedImage", "open_image"),
        },
    )
