-- $1 key, $2 limit. Latest terms first.
select t.token as term_token, t.grant_id as term_grant_id, t.holder_uid as term_holder_uid,
       t.holder_namespace as term_holder_namespace, t.holder_name as term_holder_name, t.reason as term_reason,
       (extract(epoch from t.granted_at) * 1000000)::bigint as term_granted_at_us,
       t.confirmed as term_confirmed,
       t.session, t.end_reason, (extract(epoch from t.ended_at) * 1000000)::bigint as ended_at_us
from leadergroup.terms as t
where t.key = $1
order by t.token desc
limit $2
