"""The paper's data sets that need work by hand or hours of download: Speech Commands and Flickr-Mammal."""

from dagc.data import Entry
from dagc.data.download import Source
from research import flickr, speech

__all__ = ["ENTRIES"]

_SPEECH = "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz"
_SPEECH_SHA256 = "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58"  # as torchaudio publishes it
_FLICKR = "https://zenodo.org/records/3676081/files/geo_animal.tar.gz"  # no checksum known to us

ENTRIES = (
    Entry(
        "speech-commands",
        "40,000 spoken words, log-mel 32×32",
        10,
        "2.4 GB",
        "CC BY 4.0",
        (Source(_SPEECH, f"sha256:{_SPEECH_SHA256}", "SpeechCommands/speech_commands_v0.02"),),
        speech.locate,
        speech.read,
    ),
    Entry(
        "flickr-mammal",
        "mammals by subcontinent, 32×32×3",
        10,
        "partly by hand",
        "per photo",
        (Source(_FLICKR, None, "flickr-mammal-zenodo"),),
        flickr.locate,
        flickr.read,
    ),
)
"""For `dagc.data.CATALOGUE`."""
