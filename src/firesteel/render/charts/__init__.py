"""Charts as SVG text: lines over two axes, and rows over one axis.

Both kinds also give their figures as a table, for readers who do not see the drawing. Pure: the same values
give the same text. It knows nothing of plans and runs, and does not choose what is worth a chart.
"""
