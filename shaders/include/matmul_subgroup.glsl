// Lanes of a subgroup written out, and how one hands its values to all: FROM(value, lane), which is one instruction of CPU drivers.
// F(i, lane, first, c). Of a along m, four lanes from `first` hold four steps along k of the rows from `first`, that of `lane`
// as component c.
#define AND_LANE(F, i) F(i, 0, 0, x) F(i, 1, 0, y) F(i, 2, 0, z) F(i, 3, 0, w)
#if SUBGROUP_SIZE == 8
#define FROM subgroupShuffle
#define EACH_LANE(F, i) AND_LANE(F, i) F(i, 4, 4, x) F(i, 5, 4, y) F(i, 6, 4, z) F(i, 7, 4, w)
#else
#define FROM subgroupBroadcast
#define EACH_LANE(F, i) AND_LANE(F, i)
#endif
