-- The database's history is another one than the tokens were granted in: begin a new era. Whoever comes second finds
-- nothing to do and reads what the first one wrote. Taking at least the timeline's number keeps two branches of the same
-- past apart: a promoted standby and a backup restored later get different timelines, hence different eras.
with changed as (
    update leadergroup.meta as m
    set system_identifier = p.system_identifier,
        timeline = p.timeline,
        era = greatest(m.era + 1, p.timeline)
    from leadergroup.present as p
    where (m.system_identifier, m.timeline) <> (p.system_identifier, p.timeline)
    returning m.system_identifier, m.timeline, m.era
)
select system_identifier, timeline, era from changed
union all
select system_identifier, timeline, era from leadergroup.meta where not exists (select from changed)
