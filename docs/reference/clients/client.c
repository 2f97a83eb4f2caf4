// A node of a neuraxis mesh in C, with zenoh-pico: ./client ROUTER MESSAGES
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zenoh-pico.h>

#define MESH "neuraxis/default"
#define NAME "plain"
#define PEER "robot"
static uint64_t started;  // the incarnation: tells a restarted node from its predecessor

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void put_le(uint8_t *at, uint64_t value) {
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static void envelope(z_owned_bytes_t *into, uint64_t sequence) {
    uint8_t head[36 + sizeof(NAME) - 1] = {'n', 'x', 2, 0};  // magic, version, kind: a stream
    put_le(head + 4, started);
    put_le(head + 12, sequence);
    put_le(head + 20, (uint64_t)-1);  // no step
    put_le(head + 28, now_ns());
    memcpy(head + 36, NAME, sizeof(NAME) - 1);
    z_bytes_copy_from_buf(into, head, sizeof(head));
}

static size_t put_text(uint8_t *at, const char *text) {  // MessagePack: str 8
    at[0] = 0xd9, at[1] = (uint8_t)strlen(text);
    memcpy(at + 2, text, at[1]);
    return 2 + at[1];
}

static size_t put_number(uint8_t *at, uint64_t value) {  // MessagePack: uint 64, big endian
    at[0] = 0xcf;
    for (int i = 0; i < 8; i++) at[1 + i] = (uint8_t)(value >> (56 - 8 * i));
    return 9;
}

static void presence(char *key) {  // role, host, process, incarnation and further roles, in base64
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t facts[256] = {0x95};
    char host[101] = "", *end = key + sprintf(key, "%s/@presence/%s/", MESH, NAME);
    gethostname(host, sizeof(host) - 1);
    size_t n = 1 + put_text(facts + 1, "");
    n += put_text(facts + n, host);
    n += put_number(facts + n, (uint64_t)getpid());
    n += put_number(facts + n, started);
    facts[n++] = 0x90;
    for (size_t bit = 0; bit < 8 * n; bit += 6) {
        unsigned pair = (unsigned)facts[bit / 8] << 8 | (bit / 8 + 1 < n ? facts[bit / 8 + 1] : 0u);
        *end++ = digits[pair >> (10 - bit % 8) & 63];
    }
    *end = 0;
}

static void show(const char *what, const z_loaned_bytes_t *payload) {
    z_owned_string_t text;
    z_bytes_to_string(payload, &text);
    printf("%s %.*s\n", what, (int)z_string_len(z_loan(text)), z_string_data(z_loan(text)));
    fflush(stdout);
    z_drop(z_move(text));
}

static void received(z_loaned_sample_t *sample, void *unused) {
    (void)unused;
    show("received", z_sample_payload(sample));
}

static void answered(z_loaned_reply_t *reply, void *unused) {
    (void)unused;
    if (z_reply_is_ok(reply)) show("answer", z_sample_payload(z_reply_ok(reply)));
}

static void add(z_loaned_query_t *query, void *unused) {  // the sum of [1, 2, 39]
    (void)unused;
    z_owned_string_t text;
    z_bytes_to_string(z_query_payload(query), &text);
    long sum = 0, number;
    char numbers[200], result[40], *next = numbers + 1;
    snprintf(numbers, sizeof(numbers), "%.*s", (int)z_string_len(z_loan(text)), z_string_data(z_loan(text)));
    for (int used; sscanf(next, "%ld%n", &number, &used) == 1; next += used + 1) sum += number;
    z_drop(z_move(text));
    snprintf(result, sizeof(result), "%ld", sum);
    z_query_reply_options_t options;
    z_query_reply_options_default(&options);
    z_owned_encoding_t encoding;
    z_encoding_from_str(&encoding, "application/json");
    options.encoding = z_move(encoding);
    z_owned_bytes_t payload;
    z_bytes_copy_from_str(&payload, result);
    z_query_reply(query, z_query_keyexpr(query), z_move(payload), &options);
}

int main(int argc, char **argv) {
    z_owned_config_t config;
    z_owned_session_t session;
    z_config_default(&config);
    if (argc != 3) return 2;
    zp_config_insert(z_loan_mut(config), Z_CONFIG_CONNECT_KEY, argv[1]);
    if (z_open(&session, z_move(config), NULL) < 0) return 1;
    started = now_ns();

    char token_key[600];
    presence(token_key);
    z_view_keyexpr_t key;
    z_view_keyexpr_from_str(&key, token_key);
    z_owned_liveliness_token_t token;
    z_liveliness_declare_token(z_loan(session), &token, z_loan(key), NULL);

    z_owned_closure_query_t serve;
    z_owned_queryable_t service;
    z_closure(&serve, add, NULL, NULL);
    z_view_keyexpr_from_str(&key, MESH "/" NAME "/@serve/add/@from/**");
    z_declare_queryable(z_loan(session), &service, z_loan(key), z_move(serve), NULL);

    z_owned_closure_sample_t listen;
    z_owned_subscriber_t subscriber;
    z_closure(&listen, received, NULL, NULL);
    z_view_keyexpr_from_str(&key, MESH "/" PEER "/pose");
    z_declare_subscriber(z_loan(session), &subscriber, z_loan(key), z_move(listen), NULL);

    z_get_options_t ask;
    z_get_options_default(&ask);
    z_owned_bytes_t payload, attachment;
    z_owned_encoding_t encoding;
    z_owned_closure_reply_t reply;
    z_bytes_copy_from_str(&payload, "21");
    z_encoding_from_str(&encoding, "application/json");
    envelope(&attachment, 0);
    ask.payload = z_move(payload), ask.encoding = z_move(encoding), ask.attachment = z_move(attachment);
    z_closure(&reply, answered, NULL, NULL);
    z_view_keyexpr_from_str(&key, MESH "/" PEER "/@serve/double/@from/" NAME);
    z_get(z_loan(session), z_loan(key), "", z_move(reply), &ask);

    for (uint64_t number = 0; number < strtoull(argv[2], NULL, 10); number++) {
        char text[40];
        snprintf(text, sizeof(text), "{\"count\": %d}", (int)number);
        z_put_options_t options;
        z_put_options_default(&options);
        z_bytes_copy_from_str(&payload, text);
        z_encoding_from_str(&encoding, "application/json");
        envelope(&attachment, number);
        options.encoding = z_move(encoding), options.attachment = z_move(attachment);
        z_view_keyexpr_from_str(&key, MESH "/" NAME "/count");
        z_put(z_loan(session), z_loan(key), z_move(payload), &options);
        usleep(100000);
    }
    z_drop(z_move(subscriber));
    z_drop(z_move(service));
    z_drop(z_move(token));
    z_drop(z_move(session));
    return 0;
}
