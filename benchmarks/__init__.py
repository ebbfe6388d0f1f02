"""The hot paths, each beside the formulation of the authors' program and the machine's own limits, in one run."""

from bert4rec_tf.foundation.startup import import_tensorflow

import_tensorflow()
