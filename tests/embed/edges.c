/* What a C program may do wrong, and what it may do from another thread or a callback: tests/integration/embed.rs. */
#include <pthread.h>
#include <shoal.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define CHECK(holds)                                                    \
    do {                                                                \
        if (!(holds)) {                                                 \
            const char *why = shoal_last_error();                       \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #holds, why ? why : "no error"); \
            failures++;                                                 \
        }                                                               \
    } while (0)

static int refused(const char *part) {
    const char *why = shoal_last_error();
    return why != NULL && strstr(why, part) != NULL;
}

/* A generation, and who stops it. */
struct answer {
    shoal_model *model;
    pthread_t canceller;
    int pieces;
    int inner;
    int started;
    size_t wrong_ends;
};

static void *cancel(void *model) {
    shoal_cancel(model);
    return NULL;
}

static int count(const char *piece, size_t bytes, void *user) {
    struct answer *answer = user;
    answer->pieces++;
    answer->wrong_ends += piece[bytes] != '\0' || strlen(piece) != bytes || bytes == 0;
    return 0;
}

static int once(const char *piece, size_t bytes, void *user) {
    count(piece, bytes, user);
    return 7;
}

static int cancelled_by_another(const char *piece, size_t bytes, void *user) {
    struct answer *answer = user;
    count(piece, bytes, user);
    if (!answer->started) {
        answer->started = 1;
        CHECK(pthread_create(&answer->canceller, NULL, cancel, answer->model) == 0);
        CHECK(pthread_join(answer->canceller, NULL) == 0);
    }
    return 0;
}

static int asks_again(const char *piece, size_t bytes, void *user) {
    struct answer *answer = user;
    count(piece, bytes, user);
    answer->inner = shoal_generate(answer->model, "Tell me more", NULL, count, answer);
    return 1;
}

static void *ask(void *user) {
    struct answer *answer = user;
    shoal_options options = shoal_defaults();
    options.max_tokens = 8;
    answer->inner = shoal_generate(answer->model, "Tell me a story", &options, count, answer);
    return NULL;
}

int main(void) {
    const char *prompt = "Tell me a story about a fox and a lantern";
    shoal_options options = shoal_defaults();
    struct answer answer = {0};
    struct answer both[2] = {{0}, {0}};
    pthread_t threads[2];
    shoal_model *model;

    CHECK(shoal_abi() == SHOAL_ABI && strlen(shoal_version()) > 0);
    CHECK(shoal_last_error() == NULL);
    CHECK(options.seed == 0 && options.max_tokens == 512 && options.temperature == 0 && options.raw == 0);

    CHECK(shoal_load(NULL, 0) == NULL && refused("name is NULL"));
    CHECK(shoal_load("\xff\xfe", 0) == NULL && refused("not UTF-8"));
    CHECK(shoal_load("no/such/file.gguf", 0) == NULL && refused("file.gguf"));
    CHECK(shoal_load("minnow", 65535) == NULL && refused("threads"));
    shoal_cancel(NULL);
    shoal_free(NULL);

    model = shoal_load("minnow", 1);
    CHECK(model != NULL && shoal_last_error() == NULL);
    if (model == NULL) return 1;
    answer.model = model;
    CHECK(shoal_generate(NULL, prompt, NULL, count, &answer) == SHOAL_FAILED && refused("model is NULL"));
    CHECK(shoal_generate(model, NULL, NULL, count, &answer) == SHOAL_FAILED && refused("prompt is NULL"));
    CHECK(shoal_generate(model, prompt, NULL, NULL, &answer) == SHOAL_FAILED && refused("on_piece is NULL"));
    CHECK(shoal_generate(model, "a\xc3", NULL, count, &answer) == SHOAL_FAILED && refused("not UTF-8"));
    CHECK(shoal_generate(model, " ", NULL, count, &answer) == SHOAL_FAILED && refused("empty"));
    options.temperature = -1;
    CHECK(shoal_generate(model, prompt, &options, count, &answer) == SHOAL_FAILED && refused("temperature"));
    CHECK(answer.pieces == 0);

    options = shoal_defaults();
    options.max_tokens = 5;
    CHECK(shoal_generate(model, prompt, &options, count, &answer) == SHOAL_LENGTH);
    CHECK(answer.pieces > 0 && answer.pieces <= 5 && answer.wrong_ends == 0 && shoal_last_error() == NULL);

    answer.pieces = 0;
    CHECK(shoal_generate(model, prompt, NULL, once, &answer) == SHOAL_CANCELLED && answer.pieces == 1);
    answer.pieces = 0;
    CHECK(shoal_generate(model, prompt, NULL, cancelled_by_another, &answer) == SHOAL_CANCELLED && answer.pieces == 1);
    /* What was cancelled is the answer of then. */
    answer.pieces = 0;
    CHECK(shoal_generate(model, prompt, &options, count, &answer) == SHOAL_LENGTH && answer.pieces > 1);

    CHECK(shoal_generate(model, prompt, NULL, asks_again, &answer) == SHOAL_CANCELLED);
    CHECK(answer.inner == SHOAL_FAILED);

    /* Two threads take turns. */
    for (int i = 0; i < 2; i++) {
        both[i].model = model;
        CHECK(pthread_create(&threads[i], NULL, ask, &both[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(both[i].inner == SHOAL_LENGTH && both[i].pieces > 0);
    }
    shoal_free(model);
    return failures != 0;
}
