"""MODELS: name -> class."""

from bert4rec_tf.models.bert4rec import BERT4Rec
from bert4rec_tf.models.bpr_mf import BprMf
from bert4rec_tf.models.caser import Caser
from bert4rec_tf.models.fpmc import Fpmc
from bert4rec_tf.models.gru4rec import GRU4Rec
from bert4rec_tf.models.gru4rec_plus import GRU4RecPlus
from bert4rec_tf.models.ncf import Ncf
from bert4rec_tf.models.pop import Pop
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.models.sasrec import SASRec

MODELS: dict[str, type[Recommender]] = {
    "pop": Pop,
    "bpr_mf": BprMf,
    "ncf": Ncf,
    "fpmc": Fpmc,
    "gru4rec": GRU4Rec,
    "gru4rec_plus": GRU4RecPlus,
    "caser": Caser,
    "sasrec": SASRec,
    "bert4rec": BERT4Rec,
}
"""In the order of Table 2."""
