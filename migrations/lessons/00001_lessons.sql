-- +goose Up
CREATE TABLE public.outbox (
    id             BIGSERIAL    PRIMARY KEY,
    event_id       VARCHAR(64)  NOT NULL UNIQUE,          -- ULID; the idempotency key
    event_type     VARCHAR(128) NOT NULL,                 -- 'lesson.completed'
    aggregate_type VARCHAR(128),
    aggregate_id   VARCHAR(128),
    partition_key  VARCHAR(256),                          -- order is kept within it; here the user id
    payload        JSONB        NOT NULL,
    headers        JSONB        NOT NULL DEFAULT '{}',    -- correlation_id, traceparent
    created_at     TIMESTAMPTZ  NOT NULL DEFAULT now(),
    published_at   TIMESTAMPTZ,
    attempts       INT          NOT NULL DEFAULT 0        -- failed attempts over all subscribers
);
CREATE INDEX idx_outbox_unpublished ON public.outbox (created_at) WHERE published_at IS NULL;

CREATE TABLE public.lesson_progress (
    user_id      BIGINT       NOT NULL,
    lesson_id    BIGINT       NOT NULL,
    track_slug   VARCHAR(128) NOT NULL,
    lesson_slug  VARCHAR(128) NOT NULL,
    completed    BOOLEAN      NOT NULL DEFAULT false,
    completed_at TIMESTAMPTZ,
    event_id     VARCHAR(64),
    PRIMARY KEY (user_id, lesson_id)
);

-- A row for each user who has completed a lesson. Its lock lets the completions of one user pass one after the other.
CREATE TABLE public.learners (
    user_id BIGINT PRIMARY KEY
);

CREATE TABLE public.user_achievements (
    user_id          BIGINT       NOT NULL,
    achievement_slug VARCHAR(160) NOT NULL,
    earned_at        TIMESTAMPTZ  NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, achievement_slug)
);

CREATE TABLE public.analytics_events (
    event_id    VARCHAR(64)  PRIMARY KEY,
    event_type  VARCHAR(128) NOT NULL,
    user_id     BIGINT       NOT NULL,
    track_slug  VARCHAR(128) NOT NULL,
    lesson_slug VARCHAR(128) NOT NULL,
    occurred_at TIMESTAMPTZ  NOT NULL
);

CREATE TABLE public.notifications (
    event_id   VARCHAR(64) PRIMARY KEY,
    user_id    BIGINT      NOT NULL,
    message    TEXT        NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    sent_at    TIMESTAMPTZ
);
CREATE INDEX idx_notifications_user ON public.notifications (user_id, created_at);

CREATE TABLE public.recommendations (
    user_id    BIGINT       NOT NULL,
    track_slug VARCHAR(128) NOT NULL,
    completed  INT          NOT NULL,
    updated_at TIMESTAMPTZ  NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, track_slug)
);

-- +goose Down
DROP TABLE public.recommendations, public.notifications, public.analytics_events,
    public.user_achievements, public.lesson_progress, public.learners, public.outbox;
