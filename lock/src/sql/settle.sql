-- $1 system identifier, $2 timeline, $3 era: the history that was watched. If it is still the present one, its era has settled.
update leadergroup.settled as s set era = m.era
from leadergroup.meta as m
where (m.system_identifier, m.timeline, m.era) = ($1, $2, $3) and s.era < m.era
returning s.era
