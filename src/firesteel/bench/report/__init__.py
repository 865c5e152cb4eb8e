"""A measured run as one HTML file: which charts a run gets, and the page around them.

`page.report_page` builds it, `verdict` puts the run into sentences, `tables` has its figures as text. Drawing
itself is `render.charts`. It measures nothing, and reads and writes no files.
"""
