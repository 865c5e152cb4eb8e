"""Text -> launches: what people paste, parsed the way the tool that it is meant for would parse it.

`read` takes a `docker run` line, an engine's command line, a script, a Markdown guide, a compose file, a
manifest, a unit or another tool's recipe, and returns every launch in it with the position of each flag,
variable and option. It never runs, fetches or repairs anything, and keeps what it cannot parse as text.
`render` is its inverse.
"""
