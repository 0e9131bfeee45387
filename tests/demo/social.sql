-- The demo's own tables: a small social application, and what its receivers recorded. Run by the owner of the database
-- after manifests/sql; role fanout_app is the application.

begin;

create schema social;

create table social.authors (
  name     text primary key,
  sequence bigint not null default 0);
comment on table social.authors is 'One row per author. Whoever writes for an author holds this row''s lock until commit, so the author''s events have an order.';

create table social.posts (
  event_id   uuid primary key,
  author     text not null references social.authors,
  sequence   bigint not null,
  visibility text not null,
  body       text not null,
  digest     bytea not null,
  unique (author, sequence));

create table social.follows (
  event_id uuid primary key,
  author   text not null references social.authors,
  sequence bigint not null,
  followed text not null,
  digest   bytea not null,
  unique (author, sequence));

create table social.likes (
  event_id uuid primary key,
  author   text not null references social.authors,
  sequence bigint not null,
  liked    text not null,
  digest   bytea not null,
  unique (author, sequence));

create view social.events as
  select event_id, author, sequence, digest, 'post.created' as type, visibility from social.posts
  union all
  select event_id, author, sequence, digest, 'user.followed', 'public' from social.follows
  union all
  select event_id, author, sequence, digest, 'post.liked', 'public' from social.likes;
comment on view social.events is 'What was committed: written by the application, not by what delivers it.';

create table social.receipts (
  arrival      bigint generated always as identity primary key,
  subscription text not null,
  event_id     text not null,
  author       text not null,
  sequence     bigint not null,
  digest       bytea not null,
  status       smallint not null,
  received_at  timestamptz not null default clock_timestamp());
comment on column social.receipts.arrival is 'Order of arrival. An event is recorded before it is answered, so the next one of its key comes later.';
comment on column social.receipts.status is 'How it was answered.';
create index on social.receipts (subscription, status);

grant usage on schema social to fanout_app;
grant select, insert, update on all tables in schema social to fanout_app;

commit;
