/* Whether calls use tile registers: 1 where the machine has them and the system granted them when the artefact was loaded,
 * else 0. Without them, contractions multiply f32. */
int32_t PREFIX_uses_tiles(void);

