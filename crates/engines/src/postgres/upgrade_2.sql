-- From version 1 to 2, in one transaction. `covey_join_1` stays: nodes that were mounted before still call it.
set local lock_timeout = '5s';
update covey_schema set version = 2 where version = 1;
alter table covey_session add column program text not null default '';
