"""Names that Airflow 3.1 keeps in other modules than its later versions."""

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
except ImportError:  # Airflow 3.1.
    from airflow.exceptions import AirflowFailException, AirflowNotFoundException
    from airflow.providers.standard.utils.skipmixin import SkipMixin
    from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference
    from airflow.stats import Stats
    from airflow.timetables.interval import CronDataIntervalTimetable

__all__ = [
    "AirflowFailException",
    "AirflowNotFoundException",
    "AsyncCallback",
    "CronDataIntervalTimetable",
    "DeadlineAlert",
    "DeadlineReference",
    "SkipMixin",
    "Stats",
]
