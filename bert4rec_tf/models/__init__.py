"""MODELS: name -> class."""

from bert4rec_tf.config.model_settings import MODEL_SETTINGS
from bert4rec_tf.models.bert4rec import BERT4Rec
from bert4rec_tf.models.bpr_mf import BprMf
from bert4rec_tf.models.caser import Caser
from bert4rec_tf.models.fpmc import Fpmc
from bert4rec_tf.models.gru4rec import GRU4Rec, GRU4RecPlus
from bert4rec_tf.models.item_transitions import ItemTransitions
from bert4rec_tf.models.ncf import Ncf
from bert4rec_tf.models.pop import Pop
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.models.sasrec import SASRec

_BY_SETTINGS = {
    kind.settings_type: kind
    for kind in (Pop, BprMf, Ncf, Fpmc, GRU4Rec, GRU4RecPlus, Caser, SASRec, BERT4Rec, ItemTransitions)
}
MODELS: dict[str, type[Recommender]] = {name: _BY_SETTINGS[settings] for name, settings in MODEL_SETTINGS.items()}
