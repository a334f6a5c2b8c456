-- Partial counts: the flights of one batch, by day and carrier. A day's flights may come in several
-- batches, so whoever reads the output sums up. COALESCE makes one file of a few rows.
SELECT /*+ COALESCE(1) */
       make_date(year, month, day) AS day,
       carrier,
       count(*) AS flights,
       count(dep_time) AS departed,
       sum(dep_delay) AS dep_delay_minutes
FROM records
GROUP BY make_date(year, month, day), carrier
