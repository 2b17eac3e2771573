-- $1 keys. Each row once for each of its pending terms: the last confirmed one and all after it. The terms are looked
-- up key by key: a join with the view leadergroup.terms would read both tables completely, and compare each key with
-- every row.
select l.key, l.group_id, l.session, l.token, l.grant_id, l.holder_uid, l.holder_namespace, l.holder_name,
       l.confirmed_token > 0 and l.confirmed_token = l.token as confirmed,
       l.tombstone, t.token as term_token, t.grant_id as term_grant_id, t.holder_uid as term_holder_uid,
       t.holder_namespace as term_holder_namespace, t.holder_name as term_holder_name, t.reason as term_reason,
       (extract(epoch from t.granted_at) * 1000000)::bigint as term_granted_at_us,
       t.token = l.confirmed_token as term_confirmed
from leadergroup.lock as l
left join lateral (
    select e.token, e.grant_id, e.holder_uid, e.holder_namespace, e.holder_name, e.reason, e.granted_at
    from leadergroup.term as e
    where e.key = l.key and e.token >= l.confirmed_token
    union all
    select l.token, l.grant_id, l.holder_uid, l.holder_namespace, l.holder_name, l.reason, l.lock_timestamp
    where l.holder_uid is not null and l.token >= l.confirmed_token
) as t on true
where l.key = any($1)
order by l.key, t.token
