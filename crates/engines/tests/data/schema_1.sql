-- The tables of version 1, and the function that only they have.
create table covey_schema(version integer primary key);
insert into covey_schema values(1);

create table covey_volume(
  id serial primary key,
  name text not null unique,
  uuid bytea not null,
  -- The highest session number that was given out.
  sessions bigint not null default 0
);

create table covey_kv(
  volume integer not null,
  k bytea not null,
  v bytea not null,
  primary key(volume, k)
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

create table covey_session(
  volume integer not null,
  number bigint not null,
  node bytea not null,
  host text not null,
  address text not null,
  epoch bigint not null,
  expires timestamptz not null,
  -- Which call of `join` wrote the row: a repeated call gets the same answer.
  token bytea not null,
  primary key(volume, number),
  unique(volume, node)
) with (fillfactor = 50);

create table covey_done(
  volume integer not null,
  number bigint not null,
  lane integer not null,
  op bigint not null,
  attempt integer not null,
  applied boolean not null,
  at timestamptz not null,
  primary key(volume, number, lane)
) with (fillfactor = 50);

-- The new value of a counter: 8 bytes, big-endian, signed.
create function covey_sum_1(key bytea, value bytea, by bigint) returns bigint language plpgsql immutable as $$
declare
  n bigint;
begin
  if length(value) <> 8 then
    raise exception using errcode = 'CV001', message = encode(key, 'hex') || ' is not 8 bytes';
  end if;
  n := ('x' || encode(value, 'hex'))::bit(64)::bigint;
  if (by > 0 and n > 9223372036854775807 - by) or (by < 0 and n < -9223372036854775808 - by) then
    raise exception using errcode = 'CV001', message = encode(key, 'hex') || ' overflowed';
  end if;
  return n + by;
end $$;

-- Whether a raised value is higher than the present one: 8 bytes, big-endian, unsigned.
create function covey_higher_1(key bytea, value bytea, raised bytea) returns boolean language plpgsql immutable as $$
begin
  if length(value) <> 8 then
    raise exception using errcode = 'CV001', message = encode(key, 'hex') || ' is not 8 bytes';
  end if;
  return raised > value;
end $$;

-- Takes a place in the volume. `state`: 0 joined, 1 the node has an unexpired session, 2 no such volume.
create function covey_join_1(
  vol integer, node_id bytea, host_ text, address_ text, ttl_ms bigint, take_over boolean, token_ bytea,
  out state integer, out number_ bigint, out epoch_ bigint, out other_host text, out left_ms bigint
) language plpgsql set lock_timeout = '5s' as $$
declare
  was covey_session;
begin
  perform 1 from covey_volume where id = vol for update;
  if not found then
    state := 2;
    return;
  end if;
  -- Waits for the commits of the node's earlier session, which hold this row `for key share`.
  select * into was from covey_session s where s.volume = vol and s.node = node_id for update;
  state := 0;
  if not found then
    update covey_volume set sessions = sessions + 1 where id = vol returning sessions into number_;
    epoch_ := 1;
    insert into covey_session values(vol, number_, node_id, host_, address_, epoch_,
      clock_timestamp() + ttl_ms * interval '1 millisecond', token_);
  elsif was.token = token_ then
    number_ := was.number;
    epoch_ := was.epoch;
  elsif was.expires > clock_timestamp() and not take_over then
    state := 1;
    other_host := was.host;
    left_ms := ceil(extract(epoch from was.expires - clock_timestamp()) * 1000)::bigint;
  else
    number_ := was.number;
    epoch_ := was.epoch + 1;
    update covey_session s set host = host_, address = address_, epoch = epoch_, token = token_,
      expires = clock_timestamp() + ttl_ms * interval '1 millisecond'
      where s.volume = vol and s.number = was.number;
    delete from covey_done d where d.volume = vol and d.number = was.number;
  end if;
end $$;
