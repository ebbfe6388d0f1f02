"""From files of interactions to one table, and from the table to Sequences."""

import csv

from bert4rec_tf.data.reading.blocks import LONGEST_LINE

csv.field_size_limit(LONGEST_LINE)
