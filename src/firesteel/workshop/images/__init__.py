"""Images: look first (`inspect`), build only what is missing (`build`), never tag what was not verified.

`open_image` opens a folder, an archive, an image or container of docker, or a registry's; `inspect_image`
reads its files once, as streams; `judge_recipes` holds it against the catalog, `compare_reports` against
another one. `build_image` builds a recipe, proves the image and tags it.
An inspection never unpacks an image, follows a link in it, runs what is inside, or pulls.
"""
