"""A measured run as one HTML file: which charts a run gets, and the page around them.

`page.report_page` builds it. Drawing itself is `render.charts`. It measures nothing, reads and writes no
files, and takes the verdict from `bench.compare`. Nothing is exported here, since `bench.compare` imports
`formatting` and would import itself.
"""
