"""Text -> launches: what people paste, parsed the way the tool that it is meant for would parse it.

`launches` reads a `docker run` line, an engine's command line, a script, a guide, a compose file, a manifest,
a unit or another tool's recipe: every launch in it (`reader.ReadLaunch`) with the position of each flag,
variable and option. `stated` finds what the text around it says of the machine and the release. Also public:
`docker`, `programs`, `shell`, `source_text`. It never runs, fetches or repairs anything, and keeps what it
cannot parse as text. `render` is its inverse.
"""
