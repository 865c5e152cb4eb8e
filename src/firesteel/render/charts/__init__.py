"""Charts as SVG text: lines over two axes, and rows over one axis.

Both kinds also give their figures as a table, for readers who do not see the drawing. Pure: the same values
give the same text. It knows nothing of plans and runs, and does not choose what is worth a chart.
"""

from firesteel.render.charts.line_plot import DataPoint, LinePlot, Series, downsample
from firesteel.render.charts.row_chart import Row, RowChart, draw_panels, histogram
from firesteel.render.charts.scale import Axis
from firesteel.render.charts.svg import BAD_COLOUR, COLOURS, LegendEntry, escape_text

__all__ = [
    "BAD_COLOUR",
    "COLOURS",
    "Axis",
    "DataPoint",
    "LegendEntry",
    "LinePlot",
    "Row",
    "RowChart",
    "Series",
    "downsample",
    "draw_panels",
    "escape_text",
    "histogram",
]
