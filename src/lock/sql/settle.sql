-- $1 system identifier, $2 timeline, $3 era: the history that was watched. If it is still the present one, its era has settled.
update leadergroup.meta as m set settled = m.era
where (m.system_identifier, m.timeline, m.era) = ($1, $2, $3) and m.settled < m.era
returning m.era
