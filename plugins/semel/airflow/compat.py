"""Names that Airflow 3.1 keeps in other modules than its later versions, and values that differ."""

try:
    from airflow.sdk import (
        AsyncCallback,
        CronDataIntervalTimetable,
        DeadlineAlert,
        DeadlineReference,
        SkipMixin,
    )
    from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException
    from airflow.sdk.observability.stats import Stats

    RETRY_BACKOFF: float | bool = 2.0
except ImportError:  # Airflow 3.1.
    from airflow.exceptions import AirflowFailException, AirflowNotFoundException
    from airflow.providers.standard.utils.skipmixin import SkipMixin
    from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference
    from airflow.stats import Stats
    from airflow.timetables.interval import CronDataIntervalTimetable

    RETRY_BACKOFF = True  # Its factor is always 2.

__all__ = [
    "RETRY_BACKOFF",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AsyncCallback",
    "CronDataIntervalTimetable",
    "DeadlineAlert",
    "DeadlineReference",
    "SkipMixin",
    "Stats",
]
