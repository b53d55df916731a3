create table covey_schema(version integer primary key);
insert into covey_schema values(3);

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
  -- The version of the node's program. Empty: it is older than the column.
  program text not null default '',
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
