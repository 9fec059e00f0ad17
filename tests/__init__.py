"""Tests. Every process that runs them knows ACCORDION, as a plugin that has options and asks for norms."""

from dagc.policies import POLICIES
from research.accordion import METHOD

POLICIES.setdefault("accordion", METHOD)
