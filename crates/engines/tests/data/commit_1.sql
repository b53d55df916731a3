-- A commit as nodes of the versions 1 and 2 call it.
create function covey_commit_1(
  vol integer, session_ bigint, epoch_ bigint, owner_ bigint, lane_ integer, op_ bigint, attempt_ integer,
  keys bytea[], run_end integer[], run_mode integer[],
  c_k bytea[], c_kind integer[], c_v bytea[], e_from bytea[], e_to bytea[],
  i_k bytea[], i_v bytea[], n_k bytea[], hold bytea[], b_k bytea[], b_v bytea[], u_k bytea[], u_v bytea[],
  d_k bytea[], a_k bytea[], a_by bigint[], m_k bytea[], m_v bytea[], g_k bytea[],
  out state integer, out failed integer[], out fresh bytea[], out not_empty boolean
) language plpgsql
  set lock_timeout = '5s'
  -- The plans are kept, because planning costs more than running. A plan from when the table was small must
  -- not read the whole table later. So each row is searched by its key: through `lateral` and a limit, where
  -- a join could begin with the table.
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
  set enable_material = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  me xid := pg_current_xact_id()::xid;
  was record;
  made integer := 0;
  locked integer := 0;
  seen integer;
  mine integer;
  mine_new integer;
  there integer;
  count_ integer;
  first integer := 1;
  part bytea[];
  zero constant bytea := '\x0000000000000000';
begin
  if session_ is not null then
    perform 1 from covey_session s where s.volume = vol and s.number = session_ and s.epoch = epoch_
      and s.expires > clock_timestamp() for key share;
    if not found then
      state := 2;
      return;
    end if;
  end if;

  select d.op, d.attempt, d.applied into was from covey_done d
    where d.volume = vol and d.number = owner_ and d.lane = lane_ for update;
  if not found then
    insert into covey_done values(vol, owner_, lane_, 0, 0, false, clock_timestamp()) on conflict do nothing;
    select d.op, d.attempt, d.applied into strict was from covey_done d
      where d.volume = vol and d.number = owner_ and d.lane = lane_ for update;
  end if;
  if was.op > op_ or (was.op = op_ and was.applied) then
    state := 3;
    return;
  elsif was.op = op_ and was.attempt >= attempt_ then
    state := 4;
    return;
  end if;

  if cardinality(i_k) > 0 then
    insert into covey_kv(volume, k, v) select vol, p.k, p.v from unnest(i_k, i_v) p(k, v) on conflict do nothing;
    get diagnostics made = row_count;
  end if;

  for run in 1..cardinality(run_end) loop
    part := keys[first:run_end[run]];
    first := run_end[run] + 1;
    if run_mode[run] = 3 then
      select count(*) into count_ from unnest(part) p(k), lateral (
        select 1 from covey_kv t where t.volume = vol and t.k = p.k and t.xmin <> me for update) x;
    elsif run_mode[run] = 2 then
      select count(*) into count_ from unnest(part) p(k), lateral (
        select 1 from covey_kv t where t.volume = vol and t.k = p.k and t.xmin <> me for share) x;
    else
      select count(*) into count_ from unnest(part) p(k), lateral (
        select 1 from covey_kv t where t.volume = vol and t.k = p.k and t.xmin <> me for key share) x;
    end if;
    locked := locked + count_;
  end loop;

  -- One statement, so that all of it is of one moment.
  select x.seen, x.mine, n.mine, y.failed, y.fresh, z.found, g.there
    into seen, mine, mine_new, failed, fresh, not_empty, there
    from (
      select count(*) filter (where t.xmin <> me) as seen, count(*) filter (where t.xmin = me) as mine
      from unnest(keys) p(k), lateral (
        select t.xmin from covey_kv t where t.volume = vol and t.k = p.k limit 1) t
    ) x, (
      select count(*) as mine from covey_kv t where t.volume = vol and t.k = any(n_k) and t.xmin = me
    ) n, (
      select coalesce(array_agg(c.n order by c.n), '{}') as failed,
        coalesce(array_agg(t.v order by c.n), '{}') as fresh
      from unnest(c_k, c_kind, c_v) with ordinality c(k, kind, v, n)
        left join lateral (
          select t.k, t.v from covey_kv t where t.volume = vol and t.k = c.k and t.xmin <> me limit 1
        ) t on true
      where not case c.kind when 0 then t.k is null when 1 then t.k is not null
        else t.k is not null and t.v = c.v end
    ) y, (
      select coalesce(bool_or((select true from covey_kv t
        where t.volume = vol and t.k >= e.f and t.k < e.u and t.xmin <> me limit 1)), false) as found
      from unnest(e_from, e_to) e(f, u)
    ) z, (
      select count(*) as there from covey_kv t where t.volume = vol and t.k = any(b_k || g_k)
    ) g;
  if mine + mine_new <> made then
    -- A row was written by a transaction whose number was this one's, four thousand million ago.
    raise exception using errcode = '40001', message = 'the transaction number is in use';
  elsif seen <> locked then
    raise exception using errcode = 'CV002', message = 'a row appeared that is not locked';
  elsif cardinality(failed) > 0 or not_empty then
    if made > 0 then
      delete from covey_kv t where t.volume = vol and t.k = any(i_k) and t.xmin = me;
    end if;
    if attempt_ > 1 then
      -- An earlier attempt that arrives late must not be applied after this answer.
      update covey_done d set op = op_, attempt = attempt_, applied = false, at = clock_timestamp()
        where d.volume = vol and d.number = owner_ and d.lane = lane_;
    else
      -- Nothing was changed, so nothing need be durable.
      perform set_config('synchronous_commit', 'off', true);
    end if;
    state := 1;
    return;
  elsif mine_new < cardinality(n_k) then
    raise exception using errcode = 'CV002', message = 'a row was removed after the attempt to insert it';
  elsif there < cardinality(b_k) + cardinality(g_k) then
    raise exception using errcode = 'CV002', message = 'a row that is to be changed must be inserted first';
  end if;

  -- Every row below is locked, so each `insert` finds it and becomes an update.
  if cardinality(u_k) > 0 then
    insert into covey_kv(volume, k, v) select vol, p.k, p.v from unnest(u_k, u_v) p(k, v)
      on conflict (volume, k) do update set v = excluded.v;
  end if;
  if cardinality(b_k) > 0 and mine < cardinality(b_k) + cardinality(g_k) then
    insert into covey_kv(volume, k, v) select vol, p.k, p.v from unnest(b_k, b_v) p(k, v)
      on conflict (volume, k) do update set v = excluded.v where covey_kv.xmin <> me;
  end if;
  if cardinality(a_k) > 0 then
    with sums as (
      insert into covey_kv(volume, k, v)
      select vol, p.k, int8send(covey_sum_1(p.k, t.v, p.by)) from unnest(a_k, a_by) p(k, by), lateral (
        select t.v from covey_kv t where t.volume = vol and t.k = p.k and t.xmin <> me limit 1) t
      on conflict (volume, k) do update set v = excluded.v returning v
    ) select count(*) into count_ from sums where v = zero;
    if count_ > 0 then
      delete from covey_kv t where t.volume = vol and t.k = any(a_k) and t.v = zero;
    end if;
  end if;
  if cardinality(m_k) > 0 then
    insert into covey_kv(volume, k, v)
      select vol, p.k, p.v from unnest(m_k, m_v) p(k, v), lateral (
        select t.v from covey_kv t where t.volume = vol and t.k = p.k and t.xmin <> me limit 1) t
      where covey_higher_1(p.k, t.v, p.v)
      on conflict (volume, k) do update set v = excluded.v;
  end if;
  if cardinality(d_k) + cardinality(hold) > 0 then
    delete from covey_kv t where t.volume = vol and t.k = any(d_k || hold);
  end if;
  update covey_done d set op = op_, attempt = attempt_, applied = true, at = clock_timestamp()
    where d.volume = vol and d.number = owner_ and d.lane = lane_;
  state := 0;
end $$;
