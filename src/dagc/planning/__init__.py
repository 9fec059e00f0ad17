"""Before training: what a federation would send, how long it would take, and why the settings are what they are."""

from dagc.planning.choices import Choice, choices
from dagc.planning.forecast import Fleet, Forecast, forecast
from dagc.planning.page import plan_page
from dagc.planning.verdict import MORE_ROUNDS, duration, verdict

__all__ = ["MORE_ROUNDS", "Choice", "Fleet", "Forecast", "choices", "duration", "forecast", "plan_page", "verdict"]
