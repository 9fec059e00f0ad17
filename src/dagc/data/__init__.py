"""Data sets in their official formats, the user's own data, and how they are split over workers."""

from dagc.data.batches import Batches
from dagc.data.catalogue import CATALOGUE, Entry, get, load
from dagc.data.dataset import Dataset, Objective
from dagc.data.folder import data_folder
from dagc.data.given import as_dataset
from dagc.data.own import read_csv, read_npz
from dagc.data.partition import Partition, by_client, from_sizes, iid, one_large, skewed
from dagc.data.spec import PARTITIONS, make_partition

__all__ = [
    "CATALOGUE",
    "PARTITIONS",
    "Batches",
    "Dataset",
    "Entry",
    "Objective",
    "Partition",
    "as_dataset",
    "by_client",
    "data_folder",
    "from_sizes",
    "get",
    "iid",
    "load",
    "make_partition",
    "one_large",
    "read_csv",
    "read_npz",
    "skewed",
]
