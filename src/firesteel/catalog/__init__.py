"""What is known to work: recipes, the models they serve, the images they run in.

`catalog` finds recipes by name, `image` identifies images by their references, and `launches` makes a Launch
out of a recipe and has every step that changes one later. The other modules are public as well: `recipe`,
`model`, `image_recipe`. Pure: shipped files are package data and count as code, a user's files come in as
(path, text). It never plans, checks rules or does I/O.
"""
