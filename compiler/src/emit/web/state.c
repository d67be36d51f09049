
void PREFIX_web_state_init(void *state, const int64_t *dims);
void PREFIX_web_state_init(void *state, const int64_t *dims) {
    PREFIX_state_init(state, dims);
}

void PREFIX_web_state_reset(void *state);
void PREFIX_web_state_reset(void *state) {
    PREFIX_state_reset(state);
}

int PREFIX_web_state_is_valid(const void *state, size_t bytes);
int PREFIX_web_state_is_valid(const void *state, size_t bytes) {
    return PREFIX_state_is_valid(state, bytes);
}
