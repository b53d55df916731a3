-- Takes a place in the volume. `state`: 0 joined, 1 the node has an unexpired session, 2 no such volume.
create or replace function covey_join_2(
  vol integer, node_id bytea, host_ text, address_ text, ttl_ms bigint, take_over boolean, token_ bytea,
  program_ text,
  out state integer, out number_ bigint, out epoch_ bigint, out other_host text, out left_ms bigint
) language plpgsql set lock_timeout = '5s' as $$
declare
  was covey_session;
begin
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'local', true);
  end if;
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
    insert into covey_session(volume, number, node, host, address, epoch, expires, token, program)
      values(vol, number_, node_id, host_, address_, epoch_,
        clock_timestamp() + ttl_ms * interval '1 millisecond', token_, program_);
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
      program = program_, expires = clock_timestamp() + ttl_ms * interval '1 millisecond'
      where s.volume = vol and s.number = was.number;
    delete from covey_done d where d.volume = vol and d.number = was.number;
  end if;
end $$;
