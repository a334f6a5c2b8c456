-- Partial sums: the flights of one batch by airport. Whoever reads the output sums up.
SELECT /*+ COALESCE(1) */
       origin AS airport,
       count(*) AS flights,
       count(dep_time) AS departed,
       sum(dep_delay) AS dep_delay_minutes
FROM records
GROUP BY origin
